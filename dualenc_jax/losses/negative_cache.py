"""A cache of negatives: passages encoded some steps ago, beyond the batch.

Each of M slots has the embedding of one text, its tokens, so that it can be
encoded again, and its fingerprint. All arrays are sharded by slot over the mesh
axis `data`, and a row leaves its device only to be returned: queries for slots,
and new rows, travel round the ring of devices, as columns do in `ring.py`.
Slot number M stands for no slot. Lindgren et al., NeurIPS 2021.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.losses.ring import Ring
from dualenc_jax.losses.similarity import mesh_in_scope

# Slots that are scored at once: the same on any number of devices.
BLOCK = 1024


class NegativeCache(NamedTuple):
  """A cache of M slots, each text in one at most; D embedding dim.

  Embeddings float32 [M, D] are as they were when last encoded; tokens [M, L]
  are padded with 0, ids uint32 [M, 2] their fingerprints. The age counts
  updates since the text came, or was last encoded.
  """

  embeddings: jax.Array
  tokens: jax.Array
  ids: jax.Array
  age: jax.Array
  valid: jax.Array

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
  """A cache of M = `size` slots without any text, NumPy arrays.

  Tokens below a `vocab_size` of up to 65,536 take two bytes.
  """
  tokens = np.uint16 if vocab_size <= 2**16 else np.int32
  arrays: list[Any] = [
      np.zeros((size, features), np.float32), np.zeros((size, length), tokens),
      np.zeros((size, 2), np.uint32), np.zeros(size, np.int32),
      np.zeros(size, bool),
  ]
  return NegativeCache(*arrays)


def data_ring(tile: int) -> Ring:
  """The ring of devices on the axis `data` of the mesh in scope."""
  mesh = mesh_in_scope()
  return Ring(mesh, ('data',) if mesh else (), tile, False, 'highest')


def fetch_on_shard(ring: Ring, cache: NegativeCache, slots: jax.Array) -> Rows:
  """The rows in the slots [b, ...] that one device wants, from all shards."""
  own, first = cache.size, ring.place() * cache.size

  def hop(rows, _):
    place = rows.slots - first
    here = (place >= 0) & (place < own)

    def pick(stored, so_far):
      found = jnp.take(stored, place, axis=0, mode='clip')
      of_row = here.reshape(*here.shape, *[1] * (found.ndim - here.ndim))
      return jnp.where(of_row, found.astype(so_far.dtype), so_far)

    found = {
        name: pick(getattr(cache, name), getattr(rows, name))
        for name in ('tokens', 'embeddings', 'valid')
    }
    return ring.send(rows._replace(**found)), None

  zero = jnp.zeros_like(slots)[..., None]

  def zeros(stored, dtype):
    shape = (*slots.shape, *stored.shape[1:])
    return jnp.broadcast_to(zero, shape).astype(dtype)

  rows = Rows(
      slots, zeros(cache.tokens, jnp.int32),
      zeros(cache.embeddings, jnp.float32), zero[..., 0].astype(bool),
  )
  return jax.lax.scan(hop, rows, length=ring.devices)[0]


def oldest(cache: NegativeCache, count: int, multiple: int = 1) -> Rows:
  """The texts that have gone longest without being encoded.

  Rows [count] have the oldest first, of equal ages the lowest slot; the count
  is rounded up to a multiple of `multiple` and of the devices on the data axis.
  Rows beyond the texts, or beyond `count`, are empty.
  """
  ring, size = data_ring(BLOCK), cache.size
  padding = -count % math.lcm(multiple, ring.devices)
  share = (count + padding) // ring.devices

  def on_shard(cache, _):
    age = jnp.where(cache.valid, cache.age, -1)
    slots = by_age(ring, age, count, size)
    slots = jnp.pad(slots, (0, padding), constant_values=size)
    own = jax.lax.dynamic_slice_in_dim(slots, ring.place() * share, share)
    return fetch_on_shard(ring, cache, own)

  return ring.on_shards(on_shard)(cache, ())


def by_age(ring: Ring, age: jax.Array, count: int, size: int) -> jax.Array:
  """The `count` oldest of all devices' slots by ages [m], equal ages in order.

  M takes the place of a slot whose age is negative.
  """
  own = age.shape[0]
  ages, places = jax.lax.top_k(age, min(count, own))
  slots = jnp.where(ages < 0, size, places + ring.place() * own)
  # In the order of devices: of equal ages top_k takes the lower slot.
  ages, slots = ring.gather(ages), ring.gather(slots)
  return slots[jax.lax.top_k(ages, count)[1]]
