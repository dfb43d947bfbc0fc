"""Negatives drawn from a cache in proportion to exp(score), by Gumbel-max.

Each device finds the best of its own slots for the queries of all. Scores and
noise exist for one block of slots at a time. Noise is a function of the key,
the number of the query and the slot alone, so the same slots are drawn on any
number of devices.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.losses import negative_cache, score_matrix
from dualenc_jax.losses.negative_cache import BLOCK, NegativeCache, Rows
from dualenc_jax.losses.score_matrix import MASKED, NegativeMask


class Sample(NamedTuple):
  """Slots drawn for B queries, without gradients.

  Rows [B, K] are in the order drawn, empty where candidates are too few. `lse`
  float32 [B] is log sum exp(score) over all candidates, near -1e30 without any;
  `maximum` is the best score. `unmasked` int32 [B] counts the slots that are
  negatives of the query, before any top-k.
  """

  rows: Rows
  lse: jax.Array
  maximum: jax.Array
  unmasked: jax.Array


class _Anchors(NamedTuple):
  """Queries of all devices: the arguments of `sample`, query / temperature."""

  query: jax.Array
  known: jax.Array
  numbers: jax.Array
  limits: jax.Array | None


class _Best(NamedTuple):
  """The best slots of a shard for B queries, [B, k], and statistics [B, 1].

  The slots are K by score and noise, if all slots are candidates; else t by
  score, whose lse is computed at the end. Values are MASKED without a slot.
  """

  values: jax.Array
  slots: jax.Array
  lse: jax.Array
  maximum: jax.Array
  unmasked: jax.Array


def sample(
    cache: NegativeCache, query: jax.Array, known_ids: jax.Array,
    temperature: jax.Array | float, key: jax.Array, numbers: jax.Array,
    count: int = 1, top_k: int | None = None, limits: jax.Array | None = None,
) -> Sample:
  """Draws K = `count` slots of the cache for each query, from softmax(scores).

  They are drawn without replacement, from the `top_k` best of a query's
  negatives, or from all.

  Slot j of query i has the score q_i . e_j / temperature. It is no candidate if
  its text is one of `known_ids`, or if it scores above the limit.

  `numbers` uint32 [B] number the queries of the step; `known_ids` uint32
  [B, P, 2] are fingerprints of all labelled passages of a query.
  """
  ring, size = negative_cache.data_ring(BLOCK), cache.size
  query = query.astype(jnp.float32) / temperature
  anchors = _Anchors(query, known_ids, numbers, limits)

  def on_shard(cache, anchors, key):
    best = _best_of_shard(
        cache, ring.place() * cache.size, size,
        jax.tree.map(ring.gather, anchors), top_k or count,
        None if top_k else key,
    )
    best = jax.tree.map(ring.exchange, best)
    # In the order of devices: top_k takes the lower slot of equal values.
    values, slots = _largest(best.values, best.slots, top_k or count)
    lse = jax.nn.logsumexp(best.lse, axis=1)
    if top_k is not None:
      lse = jax.nn.logsumexp(values, axis=1)
      noisy = values + _noise(key, anchors.numbers, slots)
      noisy = jnp.where(values > 0.5 * MASKED, noisy, MASKED)
      values, slots = _largest(noisy, slots, count)
    slots = jnp.where(values > 0.5 * MASKED, slots, size)
    return Sample(
        negative_cache.fetch_rows(ring, cache, slots), lse,
        jnp.max(best.maximum, axis=1), jnp.sum(best.unmasked, axis=1),
    )

  arrays = jax.lax.stop_gradient((cache, anchors))
  return ring.on_shards(on_shard)(*arrays, key)


def gumbel(bits: jax.Array) -> jax.Array:
  """Returns noise -log(-log(1 - v)), finite, v in (0, 1) from 32 random bits.

  The largest noise is of the smallest v, where float32 is finest: a maximum
  over millions of slots has no ties.
  """
  v = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
  return -jnp.log(-jnp.log1p(-jnp.minimum(v, 1.0 - 2.0**-24)))


def _noise(key: jax.Array, numbers: jax.Array, slots: jax.Array) -> jax.Array:
  """Returns noise [b, k] of queries [b] and slots [k], shared, or [b, k]."""

  def of_slot(query_key, slot):
    # Threefry of (number, slot): a new key is as random as any bits.
    return jax.random.key_data(jax.random.fold_in(query_key, slot))[0]

  query_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
  of_row = jax.vmap(of_slot, (None, 0))
  shared = slots.ndim == 1
  return gumbel(jax.vmap(of_row, (0, None if shared else 0))(query_keys, slots))


def _best_of_shard(
    cache: NegativeCache, first: jax.Array | int, size: int, anchors: _Anchors,
    count: int, noise_key: jax.Array | None,
) -> _Best:
  """Finds the best slots of a shard; without a key they compete by score.

  `first` is the number of the shard's first slot, `size` that of all slots.
  """
  block = min(BLOCK, cache.size)

  def step(best: _Best, number: jax.Array) -> tuple[_Best, None]:
    intended = number * block
    # The last block begins earlier, so that it is as long as the others.
    begin = jnp.minimum(intended, cache.size - block)
    vectors, ids = (
        jax.lax.dynamic_slice_in_dim(x, begin, block)
        for x in (cache.embeddings, cache.ids)
    )
    places = begin + jnp.arange(block, dtype=jnp.int32)
    mask: Any = score_matrix.negatives(
        NegativeMask(positives=(anchors.known[..., 0], anchors.known[..., 1])),
        NegativeMask(valid=places >= intended, text=(ids[:, 0], ids[:, 1])),
        None,
    )
    s = score_matrix.scores(anchors.query, vectors)
    above = score_matrix.above_limit(s, anchors.limits, 1)
    if above is not None:
      mask &= ~above
    s = jnp.where(mask, s, MASKED)
    slots = first + places
    values, lse = s, best.lse
    if noise_key is not None:
      noise = _noise(noise_key, anchors.numbers, slots)
      values = jnp.where(mask, s + noise, MASKED)
      lse = jnp.logaddexp(lse, jax.nn.logsumexp(s, axis=1, keepdims=True))
    slots = jnp.broadcast_to(slots[None, :], values.shape)
    here = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.int32)
    return _Best(
        *_largest(
            jnp.concatenate([best.values, values], axis=1),
            jnp.concatenate([best.slots, slots], axis=1), count,
        ), lse,
        jnp.maximum(best.maximum, jnp.max(s, axis=1, keepdims=True)),
        best.unmasked + here,
    ), None

  zero = jnp.zeros_like(anchors.query[:, :1])
  shape, none = (len(zero), count), zero + MASKED
  zero = zero.astype(jnp.int32)
  best = _Best(
      jnp.broadcast_to(none, shape), jnp.broadcast_to(zero + size, shape),
      none, none, zero,
  )
  numbers = jnp.arange(-(-cache.size // block), dtype=jnp.int32)
  return jax.lax.scan(step, best, numbers)[0]


def _largest(
    values: jax.Array, slots: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the largest of values [b, ...], and their slots, ties in order."""
  values, places = jax.lax.top_k(values, count)
  return values, jnp.take_along_axis(slots, places, axis=1)
