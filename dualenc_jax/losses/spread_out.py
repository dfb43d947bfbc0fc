"""The spread-out regulariser (Zhang et al. 2017): texts of a tower apart."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.losses.loss import (
  Embeddings,
  Loss,
  mean,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.utils.errors import expect


@dataclasses.dataclass(frozen=True)
class SpreadOut(Loss):
  """Global orthogonal regularisation, a part for `losses.Sum`.

  The sum over the towers' embeddings x, those of queries and those of passages,
  of

    second_moment_weight max(0, M2 - 1/D) + mean_weight M1^2,

  where M1 is the mean of cos(x_i, x_j) over i != j of the global batch and M2
  that of its square, which is 1/D for directions at random. EmbeddingGemma
  (Schechter Vera et al. 2025) has no mean. The temperature divides nothing.
  Hard negatives do not count, and duplicates do: texts that are equal have an
  M2 above that of others, but no gradient. No array is B x B.
  """

  mean_weight: float = 1.0
  second_moment_weight: float = 1.0

  def __post_init__(self):
    weights = self.mean_weight, self.second_moment_weight
    expect(
        min(weights) >= 0.0 < sum(weights),
        'SpreadOut.mean_weight, second_moment_weight', weights,
        'weights of 0 or more, one of them above 0',
    )

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    first, second = zip(*(
        _moments(batch, x) for x in (batch.query, batch.passage)
    ))
    least = 1.0 / batch.query.shape[-1]
    value: Any = sum(
        self.mean_weight * jnp.square(m1)
        + self.second_moment_weight * jax.nn.relu(m2 - least)
        for m1, m2 in zip(first, second)
    )
    return value, {
        'query_second_moment': second[0], 'passage_second_moment': second[1]
    }


def _moments(
    batch: Embeddings, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns means over i != j of x_i . x_j, and of its square, of [B, D]."""
  others = max(x.shape[0] - 1, 1)
  own = jnp.sum(x * x, axis=1)
  first = jnp.dot(x, jnp.sum(x, axis=0), precision='highest') - own
  # sum_j (x_i . x_j)^2 = x_i . (sum_j x_j x_j^T) x_i.
  products = jnp.dot(x.T, x, precision='highest')
  mapped = jnp.dot(x, products, precision='highest')
  second = jnp.sum(mapped * x, axis=1) - jnp.square(own)
  return mean(batch, first) / others, mean(batch, second) / others
