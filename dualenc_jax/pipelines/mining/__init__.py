"""Mining of hard negatives: candidates of retrievers, and filters."""
