"""Files, progress and facts of the machine; no room here knows of retrieval."""
