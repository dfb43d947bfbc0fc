"""Texts through towers in batches, and towers as programs."""
