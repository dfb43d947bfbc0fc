"""Encode, search exactly, measure."""
