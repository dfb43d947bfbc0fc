"""What the tasks of tasks/ read: files, their forms, and how they join."""
