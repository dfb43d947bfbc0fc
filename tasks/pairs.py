"""pairs: the user's own queries and passages, from JSONL, TSV or Parquet."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.pairs import Pairs as reader

__all__ = ['reader', 'register']

register = registrar(reader)
