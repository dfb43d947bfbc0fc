"""Embeddings and scores of texts in batches; towers as exported programs."""
