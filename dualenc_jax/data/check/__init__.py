"""The inspection of a task's examples: counts, lengths, faults."""
