"""Hard negatives: candidates of retrievers, and which of them are kept."""
