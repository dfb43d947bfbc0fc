"""Exact search on the mesh, order of hits, BM25, hybrid search."""
