"""What to rank, and what a ranking scores."""
