"""Figures and tables as files: their contents and their looks."""
