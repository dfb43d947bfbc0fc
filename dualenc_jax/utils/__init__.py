"""Errors, files, tables, figures, the machine; nothing of retrieval."""
