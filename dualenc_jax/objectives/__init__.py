"""What is trained: from a batch to a value and metrics."""
