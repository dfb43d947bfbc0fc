"""A cache of negatives: passages encoded some steps ago, beyond the batch.

Each of M slots has the embedding of one text, its tokens, so that it can be
encoded again, and its fingerprint. All arrays are sharded by slot over the mesh
axis `data`, and a row leaves its device only to be returned; each device sees
the rows of the whole batch.
Slot number M stands for no slot. Lindgren et al., NeurIPS 2021.

Negatives are drawn in proportion to exp(score), by Gumbel-max: each device
finds the best of its own slots for the queries of all. Scores and noise exist
for one block of slots at a time. Noise is a function of the key, the number of
the query and the slot alone, so the same slots are drawn on any number of
devices.
"""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.losses import score_matrix
from dualenc_jax.losses.ring import Ring
from dualenc_jax.losses.score_matrix import MASKED, NegativeMask
from dualenc_jax.parallel.accelerators import shared_mesh

# Slots that are scored at once: the same on any number of devices.
BLOCK = 1024


class NegativeCache(NamedTuple):
  """A cache of M slots with a text each, all different; D embedding dim.

  Embeddings float32 [M, D] are as they were when last encoded; tokens [M, L]
  are padded with 0, ids uint32 [M, 2] their fingerprints. The age counts
  updates since the text came, or was last encoded.
  """

  embeddings: jax.Array
  tokens: jax.Array
  ids: jax.Array
  age: jax.Array

  @property
  def size(self) -> int:
    return self.age.shape[0]


class Rows(NamedTuple):
  """Some slots of a cache, int32 [..., K], M for none.

  Without a slot tokens, int32 [..., K, L], and stale embeddings, float32
  [..., K, D], are 0, and `valid` is False.
  """

  slots: jax.Array
  tokens: jax.Array
  embeddings: jax.Array
  valid: jax.Array


def empty(
    size: int, length: int, features: int, vocab_size: int
) -> NegativeCache:
  """Returns a cache of M = `size` slots to be filled, on the host.

  Tokens below a `vocab_size` of up to 65,536 take two bytes.
  """
  tokens = np.uint16 if vocab_size <= 2**16 else np.int32
  arrays: list[Any] = [
      np.zeros((size, features), np.float32), np.zeros((size, length), tokens),
      np.zeros((size, 2), np.uint32), np.zeros(size, np.int32),
  ]
  return NegativeCache(*arrays)


def data_ring(tile: int) -> Ring:
  """Returns the ring of devices on the axis `data` of the mesh in scope."""
  mesh = shared_mesh()
  return Ring(mesh, ('data',) if mesh else (), tile)


def fetch_rows(ring: Ring, cache: NegativeCache, slots: jax.Array) -> Rows:
  """Fetches the rows in slots [b, ...] for one device, from all shards."""
  tokens = ring.fetch(cache.tokens, slots).astype(jnp.int32)
  embeddings = ring.fetch(cache.embeddings, slots)
  return Rows(slots, tokens, embeddings, slots < cache.size * ring.devices)


def oldest(cache: NegativeCache, count: int, multiple: int = 1) -> Rows:
  """Returns the slots that have gone longest without being encoded.

  Rows [count] have the oldest first, of equal ages the lowest slot; the count
  is rounded up to a multiple of `multiple` and of the devices on the data axis.
  Rows beyond `count` are empty.
  """
  ring, size = data_ring(BLOCK), cache.size
  padding = -count % math.lcm(multiple, ring.devices)
  share = (count + padding) // ring.devices

  def on_shard(cache, _):
    slots = _oldest_slots(ring, cache.age, count)
    slots = jnp.pad(slots, (0, padding), constant_values=size)
    slots = jax.lax.dynamic_slice_in_dim(slots, ring.place() * share, share)
    return fetch_rows(ring, cache, slots)

  return ring.on_shards(on_shard)(cache, ())


def _oldest_slots(ring: Ring, age: jax.Array, count: int) -> jax.Array:
  """Returns the `count` oldest slots of all devices by their ages [m].

  Equal ages are in order.
  """
  shard_size = age.shape[0]
  ages, places = jax.lax.top_k(age, min(count, shard_size))
  slots = places + ring.place() * shard_size
  # Gathered in the order of devices: top_k takes the lower slot of equal ages.
  ages, slots = ring.gather(ages), ring.gather(slots)
  return slots[jax.lax.top_k(ages, count)[1]]


def update(
    cache: NegativeCache, refreshed: Sequence[tuple[jax.Array, jax.Array]],
    passages: jax.Array, tokens: jax.Array, ids: jax.Array,
) -> NegativeCache:
  """Puts new embeddings into a cache, and the passages of a batch.

  In this order: refreshed slots get their new embedding, and age 0; so do slots
  whose text is a passage of the batch. The other passages, equal ones once,
  replace the oldest slots, of equal ages the lowest, and have age 0. All other
  slots are one older. Among several embeddings of one text the batch's counts,
  then the first.

  Slots int32 [R, ...], M for none, are refreshed by embeddings [R, ..., D];
  passages [B, D] have tokens [B, L] and ids uint32 [B, 2].
  """
  ring = data_ring(BLOCK)
  features, size = cache.embeddings.shape[1], cache.size

  def on_shard(cache, refreshed, passages, _):
    refreshed = [
        (slots.reshape(-1), rows.reshape(-1, features))
        for slots, rows in refreshed
    ]
    return _update(ring, size, cache, refreshed, passages)

  arrays = cache, list(refreshed), (passages, tokens, ids)
  arrays = jax.lax.stop_gradient(jax.tree.map(jnp.asarray, arrays))
  return ring.on_shards(on_shard)(*arrays, ())


def _update(ring, size, cache, refreshed, passages):
  """Updates one device's shard of a cache of `size`."""
  shard_size, first = cache.size, ring.place() * cache.size

  def local(slots):
    """Returns places in the shard, `shard_size` for slots of others."""
    here = (slots >= first) & (slots < first + shard_size)
    return jnp.where(here, slots - first, shard_size)

  (embeddings, tokens, ids), refreshed = jax.tree.map(
      ring.gather, (passages, refreshed)
  )
  batch = len(ids)
  present = _find(ring, cache, ids, first, size)
  once = _first_of_each(ids)
  fresh = once & (present == size)
  known = jnp.where(once, present, size)
  old = jnp.concatenate([known, *(slots for slots, _ in refreshed)])
  age = cache.age.at[local(old)].set(0, mode='drop')
  victims = _oldest_slots(ring, age, batch)
  replaced = jnp.where(fresh, victims[jnp.cumsum(fresh) - 1], size)

  # A slot takes its first embedding: new texts, those of the batch, and then
  # refreshed ones.
  places = local(jnp.concatenate([replaced, old]))
  rows = jnp.concatenate([embeddings, embeddings, *(x for _, x in refreshed)])
  number = jnp.arange(len(places), dtype=jnp.int32)
  winner = jnp.full_like(age, len(places)).at[places].min(number, mode='drop')
  won = winner.at[places].get(mode='fill', fill_value=-1) == number
  places = jnp.where(won, places, shard_size)
  tokens = tokens.astype(cache.tokens.dtype)
  return NegativeCache(
      cache.embeddings.at[places].set(rows, mode='drop'),
      cache.tokens.at[places[:batch]].set(tokens, mode='drop'),
      cache.ids.at[places[:batch]].set(ids, mode='drop'),
      jnp.where(winner < len(places), 0, cache.age + 1),
  )


def _find(ring, cache, ids, first, size):
  """Finds the slots that hold the texts of ids [B, 2]: [B], M for none."""
  shard_size = cache.size
  block = min(BLOCK, shard_size)

  def step(known, start):
    # The last block begins earlier, so that it is as long as the others.
    begin = jnp.minimum(start, shard_size - block)
    stored = jax.lax.dynamic_slice_in_dim(cache.ids, begin, block)
    # Word by word, which XLA compares faster.
    low, high = (ids[:, word, None] == stored[None, :, word] for word in (0, 1))
    slots = first + begin + jnp.arange(block, dtype=jnp.int32)
    slots = jnp.where(low & high, slots[None, :], size)
    return jnp.minimum(known, jnp.min(slots, axis=1)), None

  known = jnp.full_like(ids[:, 0], size, jnp.int32)
  known, _ = jax.lax.scan(step, known, jnp.arange(0, shard_size, block))
  return known if ring.devices == 1 else jax.lax.pmin(known, ring.axes)


def _first_of_each(ids: jax.Array) -> jax.Array:
  """Returns whether each of ids [B, 2] differs from all earlier ones."""
  number = jnp.arange(ids.shape[0], dtype=jnp.int32)
  high, low, order = jax.lax.sort((ids[:, 0], ids[:, 1], number), num_keys=3)
  again = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
  return jnp.ones_like(number, bool).at[order[1:]].set(~again)


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
  ring, size = data_ring(BLOCK), cache.size
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
        fetch_rows(ring, cache, slots), lse,
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
