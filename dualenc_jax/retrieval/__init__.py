"""From texts to hits: encoding, indices on disk, codecs and exact search.

Rankings are measured in `evaluation`.
"""
