"""Texts as tokens: vocabularies, ragged arrays, rows."""
