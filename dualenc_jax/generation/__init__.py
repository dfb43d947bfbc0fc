"""Texts that a T5 writes: sampling, decoding in chunks of steps, queries."""
