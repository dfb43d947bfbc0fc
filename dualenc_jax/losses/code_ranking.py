"""What a search of codes has found: scores with gradients, and metrics."""

import jax
import jax.numpy as jnp

from dualenc_jax.compression.product import Product
from dualenc_jax.compression.quantisers import unpacked
from dualenc_jax.losses.code_search import Hits
from dualenc_jax.losses.lambda_rank import Ranked


def ranked(
    quantiser: Product,
    query: jax.Array,
    hits: Hits,
    targets: jax.Array,
    total: int,
) -> tuple[Ranked, Ranked]:
  """Relevant passages and the other hits, scored with gradients.

  Args:
    quantiser: as trained so far.
    query: [B, d].
    hits: k of each query.
    targets: int32 [B, R], rows of its relevant passages; where there are fewer
      the first stands in.
    total: N, rows that there are.
  """
  depth = hits.rows.shape[1]
  same = targets[:, :, None] == hits.rows[:, None, :]
  places = jnp.arange(1, depth + 1, dtype=jnp.int32)
  found = jnp.any(same, axis=2)
  ranks = jnp.where(found, 1 + jnp.argmax(same, axis=2), depth + 1)
  first = jnp.arange(targets.shape[1]) == 0
  is_other = first[None] | (targets != targets[:, :1])
  is_there = hits.rows < total
  scores = scores_of(
      quantiser, query, jnp.concatenate([hits.wanted, hits.codes], axis=1)
  )
  relevant, others = jnp.split(scores, [targets.shape[1]], axis=1)
  return (
      Ranked(relevant, ranks, is_other),
      Ranked(
          others,
          jnp.broadcast_to(places[None], hits.rows.shape),
          is_there & ~jnp.any(same, axis=1),
      ),
  )


def scores_of(
    quantiser: Product, query: jax.Array, codes: jax.Array
) -> jax.Array:
  """Scores [B, n] of codes [B, n, w] of each query [B, d].

  By tables: a product for each centroid, of which each code picks M. What is
  found needs not be decoded, which took as many times more memory as a part has
  dims, here and in the backward pass.
  """
  size, count, width = codes.shape
  parts = quantiser.parts
  numbers = unpacked(codes.reshape(-1, width), quantiser.bits, parts, jnp)
  tables = jnp.einsum(
      'bms,mjs->bmj',
      query.reshape(size, parts, -1),
      quantiser.score,
      precision='highest',
  )
  of_part = jnp.swapaxes(numbers.reshape(size, count, parts), 1, 2)
  picked = jnp.take_along_axis(tables, of_part, axis=2, mode='clip')
  return jnp.sum(picked, axis=1)


def metrics(
    relevant: Ranked, others: Ranked, depth: int
) -> dict[str, jax.Array]:
  """What is logged of a search.

  Returns:
    found, the share of queries with a relevant passage among the hits; mrr, the
    mean reciprocal rank of the first; margin, the mean of what the best of them
    scores above the best other; negatives, how many a query has.
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
      'negatives': jnp.mean(
          jnp.sum(others.valid, axis=1).astype(jnp.float32)
      ),
  }
