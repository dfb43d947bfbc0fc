"""Texts that a T5 writes: sampling, decoding in slots, queries of a corpus."""
