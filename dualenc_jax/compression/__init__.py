"""Smaller indexes: what passage vectors are stored as, and how it is fitted."""
