"""pairs: query and passage, with optional hard negatives, from JSONL or TSV."""

from dualenc_jax.data.pairs import Pairs as reader

__all__ = ['reader', 'register']


def register(name: str, **options):
  """Adds the task to seqio's registry; options are those of `reader`."""
  from dualenc_jax.data import seqio_source  # Imports TensorFlow.

  return seqio_source.add_task(name, reader(**options))
