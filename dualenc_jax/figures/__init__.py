"""Figures as files: how they look, how they are drawn."""
