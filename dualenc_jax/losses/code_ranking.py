"""The hits of a search of codes: scores with gradients, loss and metrics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.losses.code_search import Hits
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import unpacked


class Ranked(NamedTuple):
  """Passages of each query [B, n]: float32 scores, int32 ranks from 1, bool."""

  scores: jax.Array
  ranks: jax.Array
  valid: jax.Array


def lambda_rank(
    relevant: Ranked, others: Ranked, cut: int, temperature: float
) -> jax.Array:
  """JPQ's loss of each query [B] (Zhan et al. 2021, after Burges 2010).

  The mean over relevant i and other j of

    log(1 + exp((s_j - s_i) / temperature)) |w(r_j) - w(r_i)|,

  where w(r) is 1 / r up to rank `cut`, and 0 behind: the gain of the reciprocal
  rank by a swap. It is 0 where a query has no pair.
  """

  def weights(ranks):
    return jnp.where(ranks <= cut, 1.0 / ranks.astype(jnp.float32), 0.0)

  margins = others.scores[:, None, :] - relevant.scores[:, :, None]
  gains = jnp.abs(
      weights(others.ranks)[:, None, :] - weights(relevant.ranks)[:, :, None]
  )
  pairs = relevant.valid[:, :, None] & others.valid[:, None, :]
  terms = jax.nn.softplus(jnp.where(pairs, margins, 0.0) / temperature)
  total = jnp.sum(jnp.where(pairs, terms * gains, 0.0), axis=(1, 2))
  count = jnp.sum(pairs, axis=(1, 2)).astype(jnp.float32)
  return total / jnp.maximum(count, 1.0)


def ranked(
    quantiser: Product, query: jax.Array, hits: Hits, targets: jax.Array,
    total: int,
) -> tuple[Ranked, Ranked]:
  """Relevant passages and the other hits, scored with gradients.

  `targets` int32 [B, R] are the rows, among `total`, of a query's relevant
  passages; the first is repeated where there are fewer.
  """
  depth = hits.rows.shape[1]
  same = targets[:, :, None] == hits.rows[:, None, :]
  places = jnp.arange(1, depth + 1, dtype=jnp.int32)
  found = jnp.any(same, axis=2)
  ranks = jnp.where(found, 1 + jnp.argmax(same, axis=2), depth + 1)
  first = jnp.arange(targets.shape[1]) == 0
  is_other = first[None] | (targets != targets[:, :1])
  scores = scores_of(
      quantiser, query, jnp.concatenate([hits.wanted, hits.codes], axis=1)
  )
  relevant, others = jnp.split(scores, [targets.shape[1]], axis=1)
  of_others = jnp.broadcast_to(places[None], hits.rows.shape)
  counted = (hits.rows < total) & ~jnp.any(same, axis=1)
  return (Ranked(relevant, ranks, is_other), Ranked(others, of_others, counted))


def scores_of(
    quantiser: Product, query: jax.Array, codes: jax.Array
) -> jax.Array:
  """Scores [B, n] of codes [B, n, w] of each query [B, d].

  Each code picks M products from a table of queries and centroids. To decode
  the hits would take as many times more memory as a part has dims, here and in
  the backward pass.
  """
  size, count, width = codes.shape
  parts = quantiser.parts
  numbers = unpacked(codes.reshape(-1, width), quantiser.bits, parts, jnp)
  tables = jnp.einsum(
      'bms,mjs->bmj', query.reshape(size, parts, -1), quantiser.score,
      precision='highest',
  )
  of_part = jnp.swapaxes(numbers.reshape(size, count, parts), 1, 2)
  picked = jnp.take_along_axis(tables, of_part, axis=2, mode='clip')
  return jnp.sum(picked, axis=1)


def metrics(
    relevant: Ranked, others: Ranked, depth: int
) -> dict[str, jax.Array]:
  """Metrics of the hits, means over queries.

  The share of queries with a relevant hit, the reciprocal rank of the first,
  the margin of the best relevant score over other hits, and the negatives.
  """
  best = jnp.min(jnp.where(relevant.valid, relevant.ranks, depth + 1), axis=1)
  found = best <= depth
  scores = [
      jnp.max(jnp.where(part.valid, part.scores, -jnp.inf), axis=1)
      for part in (relevant, others)
  ]
  several = jnp.any(others.valid, axis=1)
  margins = jnp.where(several, scores[0] - scores[1], 0.0)
  return {
      'found': jnp.mean(found.astype(jnp.float32)),
      'mrr': jnp.mean(jnp.where(found, 1.0 / best.astype(jnp.float32), 0.0)),
      'margin': jnp.mean(jax.lax.stop_gradient(margins)),
      'negatives': jnp.mean(jnp.sum(others.valid, axis=1).astype(jnp.float32)),
  }
