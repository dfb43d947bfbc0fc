"""Signs that a tower gives all texts of a batch one embedding."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

# Of the rank, and of how much lower than a constant map's a loss must be to
# show that something is learnt; where towers collapse it is about that, noisy.
_RANK, _NEAR = 2.0, 0.05
_TOWERS = 'query', 'passage'


def watched(query: jax.Array, passage: jax.Array) -> dict[str, jax.Array]:
  """Metrics of the embeddings [B, D] of both towers, of unit length.

  The rank is effective, the participation ratio of the second moments
  C = X^T X / B, (tr C)^2 / sum_ij C_ij^2: 1 where all are one vector, D where
  all directions are alike. Devices send each other sums of [D, D] alone. The
  spread is the mean of the standard deviations of the dims, times sqrt(D): 0
  where all are one vector, 1 where all directions are alike.
  """
  metrics = {}
  for name, vectors in zip(_TOWERS, (query, passage)):
    vectors = jax.lax.stop_gradient(vectors).astype(jnp.float32)
    moments = vectors.T @ vectors
    metrics[f'{name}_rank'] = jnp.square(jnp.trace(moments)) / jnp.sum(
        jnp.square(moments)
    )
    size, dim = vectors.shape
    variances = jnp.diag(moments) / size - jnp.square(
        jnp.sum(vectors, axis=0) / size
    )
    deviations = jnp.sqrt(jnp.maximum(variances, 0.0))
    metrics[f'{name}_spread'] = jnp.mean(deviations) * dim**0.5
  return metrics


def collapsed(metrics: Mapping[str, Any], chance: float | None) -> str | None:
  """The tower that looks collapsed by metrics of a step; None for neither.

  Its rank is below 2, and the loss no lower than `chance`, a constant map's.
  """
  if chance is None or float(metrics['loss']) < chance - _NEAR:
    return None
  ranks = {name: metrics.get(f'{name}_rank', _RANK) for name in _TOWERS}
  lowest = min(ranks, key=ranks.__getitem__)
  return lowest if ranks[lowest] < _RANK else None
