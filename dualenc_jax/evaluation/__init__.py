"""Retrieval sets, the rankings of systems over them, and metrics."""
