"""Search of a batch's queries among product codes, and losses of its hits.

The codes are sharded over the devices and stay where they are; each device
finds its best for the queries of all. So the hits of a step are exact, and no
index is rebuilt.

Shapes: N passages, w bytes of their codes, B queries, d their dim, k hits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.losses.negative_cache import data_ring
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import unpack

# Passages that are scored at once.
BLOCK = 2**13


class Codes(NamedTuple):
  """Codes uint8 [N, w] over the data axis; `valid` is False in padding."""

  codes: jax.Array
  valid: jax.Array


class Hits(NamedTuple):
  """The best passages of each query, best first; of equal ones the first row.

  Missing hits have the row N and codes 0. Rows are int32 [B, k], codes uint8
  [B, k, w]; `wanted` [B, R, w] are the codes of the `targets`.
  """

  rows: jax.Array
  codes: jax.Array
  wanted: jax.Array


def search(
    passages: Codes, query: jax.Array, score: jax.Array, targets: jax.Array,
    k: int,
) -> Hits:
  """Scores all passages for all queries, exactly, in float32; no gradients.

  Queries are float32 [B, d], `score` float32 [M, 2^b, d/M] the centroids that
  codes stand for, `targets` int32 [B, R] rows whose codes are wanted, too.
  """
  total, ring = len(passages.valid), data_ring(BLOCK)

  def on_shard(passages, query, targets, score):
    first = ring.place() * len(passages.valid)
    best = _best_of_shard(
        passages, Product(score, score), first, total, ring.gather(query), k
    )
    scores, rows = map(ring.exchange, best)
    # In the order of devices: top_k takes the first of equal scores.
    places = jax.lax.top_k(scores, k)[1]
    rows = jnp.take_along_axis(rows, places, axis=1)
    return Hits(
        rows, ring.fetch(passages.codes, rows),
        ring.fetch(passages.codes, targets),
    )

  arrays = passages, query.astype(jnp.float32), targets, score
  # The scan of `Product.scores` starts with zeros, which vary on no axis.
  search_shards = ring.on_shards(on_shard, check_vma=False)
  return search_shards(*jax.lax.stop_gradient(arrays))


def _best_of_shard(passages, quantiser, first, total, query, k):
  """Finds scores and rows [B, k] of a device's best, block by block."""
  shard_size = len(passages.valid)
  block = min(BLOCK, shard_size)

  def step(best, number):
    # The last block begins earlier, so that it is as long as the others.
    intended = number * block
    begin = jnp.minimum(intended, shard_size - block)
    codes, valid = (
        jax.lax.dynamic_slice_in_dim(x, begin, block) for x in passages
    )
    places = begin + jnp.arange(block, dtype=jnp.int32)
    valid &= places >= intended
    block_scores = quantiser.scores(query, codes)
    block_scores = jnp.where(valid[None], block_scores, -jnp.inf)
    rows = jnp.where(valid, first + places, total)
    rows = jnp.broadcast_to(rows[None], block_scores.shape)
    scores, rows = (
        jnp.concatenate(x, axis=1) for x in zip(best, (block_scores, rows))
    )
    scores, places = jax.lax.top_k(scores, k)
    return (scores, jnp.take_along_axis(rows, places, axis=1)), None

  zero = jnp.zeros_like(query, shape=(len(query), k))
  best = zero - jnp.inf, zero.astype(jnp.int32) + total
  numbers = jnp.arange(-(-shard_size // block), dtype=jnp.int32)
  return jax.lax.scan(step, best, numbers)[0]


class Ranked(NamedTuple):
  """Passages of each query [B, n]: float32 scores, int32 ranks from 1, bool."""

  scores: jax.Array
  ranks: jax.Array
  valid: jax.Array


def lambda_rank(
    relevant: Ranked, others: Ranked, cut: int, temperature: float
) -> jax.Array:
  """Returns JPQ's loss of each query [B] (Zhan et al. 2021).

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


def rank(
    quantiser: Product, query: jax.Array, hits: Hits, targets: jax.Array,
    total: int,
) -> tuple[Ranked, Ranked]:
  """Scores relevant passages and the other hits, with gradients.

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
  scores = score_codes(
      quantiser, query, jnp.concatenate([hits.wanted, hits.codes], axis=1)
  )
  relevant, others = jnp.split(scores, [targets.shape[1]], axis=1)
  of_others = jnp.broadcast_to(places[None], hits.rows.shape)
  counted = (hits.rows < total) & ~jnp.any(same, axis=1)
  return (Ranked(relevant, ranks, is_other), Ranked(others, of_others, counted))


def score_codes(
    quantiser: Product, query: jax.Array, codes: jax.Array
) -> jax.Array:
  """Scores codes [B, n, w] of each query [B, d]: [B, n].

  Each code picks M products from a table of queries and centroids. Decoding the
  hits would take more memory, by the factor of a part's dims.
  """
  size, count, width = codes.shape
  parts = quantiser.parts
  numbers = unpack(codes.reshape(-1, width), quantiser.bits, parts, jnp)
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
  """Returns metrics of the hits, means over queries.

  They are the share of queries with a relevant hit, the reciprocal rank of the
  first, the margin of the best relevant score over other hits, and the number
  of negatives.
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
