"""Dual-encoder retrievers in JAX: train, evaluate, search, ship."""

__version__ = '0.1.0'
