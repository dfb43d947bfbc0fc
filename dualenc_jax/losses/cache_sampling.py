"""Negatives drawn from a cache in proportion to exp(score), by Gumbel-max.

Queries travel round the ring of devices and take with them the best slots that
they have met. Scores and noise exist for one block of slots at a time. Noise is
a function of the key, the number of the query and the slot alone, so the same
slots are drawn on any number of devices.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.losses import negative_cache, score_matrix
from dualenc_jax.losses.negative_cache import BLOCK, NegativeCache, Rows
from dualenc_jax.losses.score_matrix import MASKED, Tags
from dualenc_jax.utils.errors import expect


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


@dataclasses.dataclass(frozen=True)
class Draw:
  """How slots are drawn: K = `count` a query, without replacement.

  Candidates are the `top_k` best of a query's negatives, None for all.
  """

  count: int = 1
  top_k: int | None = None

  def check(self, size: int) -> None:
    """Raises UserError for draws that a cache of `size` slots cannot give."""
    candidates = size if self.top_k is None else self.top_k
    expect(
        1 <= candidates <= size, 'TOP_K', self.top_k,
        f'1 to CACHE_SIZE, {size}, or None',
    )
    expect(
        1 <= self.count <= candidates, 'SAMPLED', self.count,
        f'1 to {candidates}, the candidates that a query has in the cache'
        ' (TOP_K, CACHE_SIZE)',
    )


class _Anchors(NamedTuple):
  """Queries under way: the arguments of `sample`, query / temperature."""

  query: jax.Array
  known: jax.Array
  numbers: jax.Array
  limits: jax.Array | None


class _Kept(NamedTuple):
  """The best slots that anchors have met: values [b, k], and sums [b].

  The slots are K by score and noise, if all slots are candidates; else t by
  score, whose lse is taken later. Values are MASKED where no slot is met yet.
  """

  values: jax.Array
  slots: jax.Array
  lse: jax.Array
  maximum: jax.Array
  unmasked: jax.Array


def sample(
    cache: NegativeCache, query: jax.Array, known_ids: jax.Array,
    temperature: jax.Array | float, key: jax.Array, numbers: jax.Array,
    draw: Draw = Draw(), limits: jax.Array | None = None,
) -> Sample:
  """Draws K slots of the cache for each query, from softmax(scores).

  Slot j of query i has the score q_i . e_j / temperature. It is no candidate if
  it is empty, if its text is one of `known_ids`, or above the limit.

  `numbers` uint32 [B] number the queries of the step; `known_ids` uint32
  [B, P, 2] are fingerprints of all labelled passages of a query.
  """
  ring, size = negative_cache.data_ring(BLOCK), cache.size
  query = query.astype(jnp.float32) / temperature
  anchors = _Anchors(query, known_ids, numbers, limits)

  def on_shard(cache, anchors, key):
    visit = functools.partial(_visit, draw, size, cache, ring.place(), key)

    def hop(visitors, _):
      anchors, kept = visitors
      return ring.send((anchors, visit(anchors, kept))), None

    visitors = anchors, _start(anchors, draw.top_k or draw.count, size)
    (anchors, kept), _ = jax.lax.scan(hop, visitors, length=ring.devices)
    if draw.top_k is not None:
      kept = _drawn(draw, key, anchors.numbers, kept)
    slots = jnp.where(kept.values > 0.5 * MASKED, kept.slots, size)
    rows = negative_cache.fetch_on_shard(ring, cache, slots)
    return Sample(rows, *kept[2:])

  arrays = jax.lax.stop_gradient((cache, anchors))
  return ring.on_shards(on_shard)(*arrays, key)


def gumbel(bits: jax.Array) -> jax.Array:
  """Noise -log(-log(1 - v)), finite, for v in (0, 1) from 32 random bits.

  Where the noise is largest, v is smallest, and float32 finest: a maximum over
  millions of slots has no ties.
  """
  v = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
  return -jnp.log(-jnp.log1p(-jnp.minimum(v, 1.0 - 2.0**-24)))


def _noise(key, numbers, slots):
  """Noise float32 [b, k] of queries [b] and slots [k], shared, or [b, k]."""

  def of_slot(own, slot):
    # Threefry of (number, slot): a new key is as random as any bits.
    return jax.random.key_data(jax.random.fold_in(own, slot))[0]

  own = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
  of_row = jax.vmap(of_slot, (None, 0))
  shared = slots.ndim == 1
  return gumbel(jax.vmap(of_row, (0, None if shared else 0))(own, slots))


def _start(anchors, count, size):
  """Anchors that have met no slot."""
  zero = jnp.zeros_like(anchors.query[:, 0])
  none, places = zero + MASKED, (zero.shape[0], count)
  slots = zero.astype(jnp.int32)
  values = jnp.broadcast_to(none[:, None], places)
  kept = jnp.broadcast_to(slots[:, None] + size, places)
  return _Kept(values, kept, none, none, slots)


def _visit(draw, size, cache, place, key, anchors, kept):
  """Lets anchors meet a device's shard of the cache."""
  own, first = cache.size, place * cache.size
  block, count = min(BLOCK, own), kept.slots.shape[1]

  def step(here, number):
    intended = number * block
    # The last block begins earlier, so that it is as long as the others.
    begin = jnp.minimum(intended, own - block)
    vectors, ids, valid = (
        jax.lax.dynamic_slice_in_dim(x, begin, block)
        for x in (cache.embeddings, cache.ids, cache.valid)
    )
    places = begin + jnp.arange(block, dtype=jnp.int32)
    mask = score_matrix.negatives(
        Tags(positives=(anchors.known[..., 0], anchors.known[..., 1])),
        Tags(valid=valid & (places >= intended), text=(ids[:, 0], ids[:, 1])),
        None,
    )
    s = score_matrix.scores(anchors.query, vectors, 'highest')
    above = score_matrix.above_limit(s, anchors.limits, 1)
    if above is not None:
      mask &= ~above
    s = jnp.where(mask, s, MASKED)
    slots = first + places
    values, lse = s, here.lse
    if draw.top_k is None:
      values = jnp.where(mask, s + _noise(key, anchors.numbers, slots), MASKED)
      lse = jnp.logaddexp(lse, jax.nn.logsumexp(s, axis=1))
    slots = jnp.broadcast_to(slots[None, :], values.shape)
    best = _best(_joined(here, (values, slots)), count)
    maximum = jnp.maximum(here.maximum, jnp.max(s, axis=1))
    unmasked = here.unmasked + jnp.sum(mask, axis=1, dtype=jnp.int32)
    return _Kept(*best, lse, maximum, unmasked), None

  here, _ = jax.lax.scan(
      step, _start(anchors, count, size),
      jnp.arange(-(-own // block), dtype=jnp.int32),
  )
  slots, values = jax.lax.sort(_joined(kept, here)[::-1], num_keys=1)
  # In the order of slots: as if met in it.
  best = _best((values, slots), count)
  return _Kept(
      *best, jnp.logaddexp(kept.lse, here.lse),
      jnp.maximum(kept.maximum, here.maximum), kept.unmasked + here.unmasked,
  )


def _joined(one, other):
  return tuple(
      jnp.concatenate(pair, axis=1) for pair in zip(one[:2], other[:2])
  )


def _best(pair, count):
  """The largest of values and their slots [b, ...]; of equal ones the first."""
  values, slots = pair
  values, places = jax.lax.top_k(values, count)
  return values, jnp.take_along_axis(slots, places, axis=1)


def _drawn(draw, key, numbers, kept):
  """K of the t slots that are kept."""
  noisy = kept.values + _noise(key, numbers, kept.slots)
  noisy = jnp.where(kept.values > 0.5 * MASKED, noisy, MASKED)
  values, slots = _best((noisy, kept.slots), draw.count)
  lse = jax.nn.logsumexp(kept.values, axis=1)
  return kept._replace(values=values, slots=slots, lse=lse)
