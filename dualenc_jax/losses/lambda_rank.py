"""Pairs of passages in a ranking, weighted by what a swap would change."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Ranked(NamedTuple):
  """Some passages of each query.

  Attributes:
    scores: float32 [B, n].
    ranks: int32 [B, n], from 1.
    valid: bool [B, n], False where there is none.
  """

  scores: jax.Array
  ranks: jax.Array
  valid: jax.Array


def lambda_rank(
    relevant: Ranked, others: Ranked, cut: int, temperature: float
) -> jax.Array:
  """JPQ's loss of each query (Zhan et al. 2021, after Burges 2010).

  The mean over relevant i and other j of

    log(1 + exp((s_j - s_i) / temperature)) |w(r_j) - w(r_i)|,

  where w(r) is 1 / r up to rank `cut`, and 0 behind: what the reciprocal rank
  gains by a swap.

  Args:
    relevant: passages.
    others: passages.
    cut: the last rank that counts.
    temperature: of the scores.

  Returns:
    float32 [B]; 0 where a query has no pair.
  """
  margins = others.scores[:, None, :] - relevant.scores[:, :, None]
  gains = jnp.abs(
      _weights(others.ranks, cut)[:, None, :]
      - _weights(relevant.ranks, cut)[:, :, None]
  )
  pairs = relevant.valid[:, :, None] & others.valid[:, None, :]
  terms = jax.nn.softplus(jnp.where(pairs, margins, 0.0) / temperature)
  total = jnp.sum(jnp.where(pairs, terms * gains, 0.0), axis=(1, 2))
  count = jnp.sum(pairs, axis=(1, 2)).astype(jnp.float32)
  return total / jnp.maximum(count, 1.0)


def _weights(ranks: jax.Array, cut: int) -> jax.Array:
  return jnp.where(ranks <= cut, 1.0 / ranks.astype(jnp.float32), 0.0)
