"""Files, progress and what machine this is; knows nothing of retrieval."""
