"""pairs: query and passage, with optional hard negatives, from JSONL or TSV."""

from dualenc_jax.data.pairs import Pairs as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
