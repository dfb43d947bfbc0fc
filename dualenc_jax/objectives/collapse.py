"""Whether a tower gives all texts one embedding, told from a few of a batch."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

# Rows that are looked at: the cost is nothing beside any loss.
_ROWS = 256
# Of the rank, and of the distance of the loss from that of a constant map.
_RANK, _NEAR = 2.0, 0.02
_TOWERS = 'query', 'passage'


def watched(query: jax.Array, passage: jax.Array) -> dict[str, jax.Array]:
  """Metrics of the embeddings [B, D] of both towers, of unit length.

  Returns:
    query_rank, passage_rank: the effective rank as participation ratio of the
      Gram matrix G of the first n rows, n^2 / sum_ij G_ij^2: 1 where all are
      one vector, n where they are orthogonal.
  """
  metrics = {}
  for name, vectors in zip(_TOWERS, (query, passage)):
    vectors = jax.lax.stop_gradient(vectors[:_ROWS]).astype(jnp.float32)
    gram = jnp.matmul(vectors, vectors.T, precision='highest')
    metrics[f'{name}_rank'] = len(vectors) ** 2 / jnp.sum(jnp.square(gram))
  return metrics


def collapsed(metrics: Mapping[str, Any], chance: float | None) -> str | None:
  """The tower of a step that looks collapsed; None for neither.

  That is one whose rank is below 2 while the loss is that of a constant map.

  Args:
    metrics: of the step.
    chance: as of `Objective.chance`.
  """
  if chance is None or abs(float(metrics['loss']) - chance) > _NEAR:
    return None
  ranks = {name: metrics.get(f'{name}_rank', _RANK) for name in _TOWERS}
  lowest = min(ranks, key=ranks.get)
  return lowest if ranks[lowest] < _RANK else None
