"""What binds an index to the tower whose embeddings it holds.

It needs no Flax, as whoever opens an artifact may have none.
"""

from typing import Any

from dualenc_jax.index.header import TOWER_SHA256
from dualenc_jax.inference.towers import Loaded


def expected(model: Loaded, tower: str) -> dict[str, Any]:
  """Fields of the header of every index of a tower's embeddings.

  They are the same of all models that have this tower, whatever their other
  one: a light query tower searches the index of the model it was aligned to.

  Args:
    model: whose parameters are read, once.
    tower: 'passage' or 'query', the one that encoded the index.
  """
  return {'tower': tower, 'dim': model.dim, **encoded_by(model, tower)}


def encoded_by(model: Loaded, tower: str) -> dict[str, Any]:
  """Those of `expected` that are of an index's provenance."""
  tokenizer = model.tokenizer
  names = f'{tower}_length', f'{tower}_prefix'
  return {
      TOWER_SHA256: dict(model.tower_digest(tower)),
      'vocabulary': tokenizer.vocabulary.sha256,
      **{name: getattr(tokenizer, name) for name in names},
  }
