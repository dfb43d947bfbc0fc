"""Exact search on the mesh, rankings, BM25."""
