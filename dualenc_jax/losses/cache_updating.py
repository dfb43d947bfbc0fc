"""Updates of a negative cache: texts encoded again, and new passages.

The rows of the step travel round the ring of devices, and each device takes the
rows of its slots. Of the whole batch it sees only slots and fingerprints.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.losses import negative_cache
from dualenc_jax.losses.negative_cache import BLOCK, NegativeCache

# The age of a slot without a text, which is taken first.
_LAST = np.iinfo(np.int32).max


def update(
    cache: NegativeCache, refreshed: Sequence[tuple[jax.Array, jax.Array]],
    passages: jax.Array, tokens: jax.Array, ids: jax.Array,
) -> NegativeCache:
  """Puts new embeddings into a cache, and the passages of a batch.

  In this order: refreshed slots get their new embedding, and age 0; so do slots
  whose text is a passage of the batch. The other passages, equal ones once,
  replace empty slots first, then the oldest; of equal ages the lowest slot.
  These have age 0, and all other slots are one older. Of several embeddings of
  one text the batch's counts, then the first.

  Slots int32 [R, ...], M for none, are refreshed by embeddings [R, ..., D];
  passages [B, D] have tokens [B, L] and ids uint32 [B, 2].
  """
  ring = negative_cache.data_ring(BLOCK)
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
  """`update` of one device's shard of a cache of `size`."""
  own, first = cache.size, ring.place() * cache.size

  def local(slots):
    """Places in the shard, `own` of slots that are not in it."""
    here = (slots >= first) & (slots < first + own)
    return jnp.where(here, slots - first, own)

  ids = ring.gather(passages[2])
  batch = ids.shape[0]
  number = jnp.arange(batch, dtype=jnp.int32)
  present = _find(ring, cache, ids, first, size)
  once = _first_of_each(ids)
  fresh = once & (present == size)
  known = jnp.where(once, present, size)
  old = [ring.gather(slots) for slots, _ in refreshed]

  age = cache.age
  for slots in (*old, known):
    age = age.at[local(slots)].set(0, mode='drop')
  victims = negative_cache.by_age(
      ring, jnp.where(cache.valid, age, _LAST), batch, size
  )
  replaced = jnp.where(fresh, victims[jnp.cumsum(fresh) - 1], size)

  # Whose embedding a slot takes, by rank: a new text's, one of the batch, one
  # that was sampled.
  claims = jnp.concatenate([replaced, known, *old])
  winner = jnp.full_like(age, claims.shape[0])
  winner = winner.at[local(claims)].min(
      jnp.arange(claims.shape[0], dtype=jnp.int32), mode='drop'
  )

  def claim(slots, rank, rows):
    """What of all slots, with their ranks, is about this device's rows."""
    share = rows['embeddings'].shape[0]
    own_rows = [
        jax.lax.dynamic_slice_in_dim(x, ring.place() * share, share)
        for x in (slots, rank)
    ]
    return (*own_rows, rows)

  traveller = [
      claim(
          jnp.where(fresh, replaced, known),
          jnp.where(fresh, number, batch + number),
          dict(zip(('embeddings', 'tokens', 'ids'), passages)),
      )
  ]
  rank = 2 * batch
  for slots, (_, embeddings) in zip(old, refreshed):
    ranks = rank + jnp.arange(slots.shape[0], dtype=jnp.int32)
    traveller.append(claim(slots, ranks, {'embeddings': embeddings}))
    rank += slots.shape[0]

  def write(cache, traveller):
    for slots, ranks, rows in traveller:
      places = local(slots)
      taken = winner.at[places].get(mode='fill', fill_value=-1) == ranks
      places = jnp.where(taken, places, own)
      stored = {
          name: getattr(cache, name)
          .at[places]
          .set(x.astype(getattr(cache, name).dtype), mode='drop')
          for name, x in rows.items()
      }
      cache = cache._replace(**stored)
    return cache

  def hop(carry, _):
    cache, traveller = carry
    traveller = ring.send(traveller)
    return (write(cache, traveller), traveller), None

  cache = write(cache, traveller)
  (cache, _), _ = jax.lax.scan(hop, (cache, traveller), length=ring.devices - 1)
  return cache._replace(
      age=jnp.where(winner < claims.shape[0], 0, cache.age + 1),
      valid=cache.valid | (winner < batch),
  )


def _find(ring, cache, ids, first, size):
  """The slots that hold the texts of ids [B, 2]: int32 [B], M for none."""
  own = cache.size
  block = min(BLOCK, own)

  def step(found, start):
    # The last block begins earlier, so that it is as long as the others.
    begin = jnp.minimum(start, own - block)
    stored, valid = (
        jax.lax.dynamic_slice_in_dim(x, begin, block)
        for x in (cache.ids, cache.valid)
    )
    same = valid[None, :]
    for word in (0, 1):
      same &= ids[:, word, None] == stored[None, :, word]
    slots = first + begin + jnp.arange(block, dtype=jnp.int32)
    slots = jnp.where(same, slots[None, :], size)
    return jnp.minimum(found, jnp.min(slots, axis=1)), None

  found = jnp.full_like(ids[:, 0], size, jnp.int32)
  found, _ = jax.lax.scan(step, found, jnp.arange(0, own, block))
  return found if ring.devices == 1 else jax.lax.pmin(found, ring.axes)


def _first_of_each(ids: jax.Array) -> jax.Array:
  """Whether each of ids [B, 2] differs from all earlier ones, bool [B]."""
  number = jnp.arange(ids.shape[0], dtype=jnp.int32)
  high, low, order = jax.lax.sort((ids[:, 0], ids[:, 1], number), num_keys=3)
  again = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
  return jnp.ones_like(number, bool).at[order[1:]].set(~again)
