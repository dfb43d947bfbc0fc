"""Looks at the examples of a task: counts, lengths, what is wrong with them."""
