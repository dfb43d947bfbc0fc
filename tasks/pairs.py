"""pairs: the user's own queries and passages, from JSONL, TSV or Parquet."""

from dualenc_jax.data.pairs import Pairs as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
