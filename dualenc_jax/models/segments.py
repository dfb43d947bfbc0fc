"""Rows that hold several texts: who attends to whom, and dropout by text.

Shapes: R rows, S texts a row, L tokens, F features.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Segments(NamedTuple):
  """The texts of rows, one after the other from the start of a row.

  Attributes:
    slots: int32 [R, L], which text of its row a token belongs to, 0 to S - 1;
      S after the last.
    positions: int32 [R, L], the token's place within its text.
    lengths: int32 [R, S], tokens of each text.
    numbers: uint32 [R, S], by which dropout knows the texts; None without it.
  """

  slots: jax.Array
  positions: jax.Array
  lengths: jax.Array
  numbers: jax.Array | None

  @classmethod
  def of(
      cls, length: int, lengths: jax.Array, numbers: jax.Array | None = None
  ) -> 'Segments':
    """Of rows of `length` tokens, whose texts have `lengths` [R, S]."""
    ends = jnp.cumsum(lengths, axis=1, dtype=jnp.int32)
    place = jnp.arange(length, dtype=jnp.int32)
    beyond = place[None, :, None] >= ends[:, None, :]
    slots = jnp.sum(beyond, axis=-1, dtype=jnp.int32)
    # The tokens of a row before its text: of all texts that have ended.
    before = jnp.sum(beyond * lengths[:, None, :], axis=-1, dtype=jnp.int32)
    return cls(slots, place[None] - before, lengths, numbers)

  def attention_mask(self) -> jax.Array:
    """True where a token may attend: bool [R, 1, 1 or L, L]."""
    size = self.lengths.shape[1]
    real = (self.slots < size)[:, None, None, :]
    if size == 1:
      return real
    same = self.slots[:, :, None] == self.slots[:, None, :]
    return real & same[:, None]

  def members(self) -> jax.Array:
    """1.0 where a token belongs to a text: float32 [R, L, S]."""
    size = self.lengths.shape[1]
    return jax.nn.one_hot(self.slots, size, dtype=jnp.float32)

  def keep_shared(self, key: jax.Array, features: int, rate: float):
    """Which features to keep, the same for all tokens of a text.

    Args:
      key: random key [].
      features: F.
      rate: share to drop.

    Returns:
      bool [R, L or 1, F].
    """
    bits = _per_key(lambda k: jax.random.bits(k, (features,)))(self._keys(key))
    keep = _keep(bits, rate)
    if keep.shape[1] == 1:
      return keep
    return jnp.take_along_axis(keep, self._own_slots()[:, :, None], axis=1)

  def keep_each(self, key: jax.Array, features: int, rate: float):
    """Which features to keep, drawn for each token: bool [R, L, F]."""
    keys = self._keys(key)
    shape = self.slots.shape[1], features
    if keys.shape[1] == 1:
      # Random number n of a key does not depend on how many are drawn, so
      # token p of a text has the numbers p F to p F + F - 1 in a row of any
      # length.
      bits = _per_key(lambda k: jax.random.bits(k, shape))(keys)[:, 0]
      return _keep(bits, rate)
    data = jnp.take_along_axis(
        jax.random.key_data(keys), self._own_slots()[:, :, None], axis=1
    )
    keys = jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
    first = self.positions.astype(jnp.uint32) * np.uint32(features)

    def bits_of_token(key, first):
      count = first + jnp.arange(features, dtype=jnp.uint32)
      return jax.vmap(_bits, (None, 0))(key, count)

    return _keep(jax.vmap(jax.vmap(bits_of_token))(keys, first), rate)

  def _keys(self, key: jax.Array) -> jax.Array:
    """A key for each text: [R, S]."""
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))(
        key, self.numbers
    )

  def _own_slots(self) -> jax.Array:
    """`slots`, those of padding moved to the last text."""
    return jnp.minimum(self.slots, self.lengths.shape[1] - 1)


def _per_key(function):
  """Maps a function of a key over keys [R, S]."""
  return jax.vmap(jax.vmap(function))


def _bits(key: jax.Array, count: jax.Array) -> jax.Array:
  """Number `count` of what `jax.random.bits(key, ...)` draws, uint32 []."""
  high, low = jax.random.key_data(jax.random.fold_in(key, count))
  return high ^ low


def _keep(bits: jax.Array, rate: float) -> jax.Array:
  """True with the probability 1 - rate."""
  return bits >= np.uint32(round(rate * 2**32))
