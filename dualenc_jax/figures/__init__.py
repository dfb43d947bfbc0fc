"""Figures and tables as files: how they look, how they are made."""
