"""Quantisers: numbers in fewer bits, the part of a codec that stores codes.

A quantiser is trained, holds NumPy arrays, and is a pytree, so that programs of
the search take it as an argument. It maps vectors to codes (`encode`), codes to
the vectors that they stand for (`decode`, on the host), and scores codes on a
device (`scores`). Host and device decode to the same float32 values, bit by
bit, so that the search can bound the rounding error of a score.

Shapes: n vectors, d their dim, Q queries, w columns of codes. `encode` is
float32 [n, d] -> [n, w], `decode` [n, w] -> float32 [n, d], and `scores` of
queries [Q, d] and codes [Q, n].
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dualenc_jax.utils.errors import UserError

# The signs, +1 or -1, of each byte of `Signs`, float32 [256, 8].
_SIGNS = np.float32(2) * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1
) - np.float32(1)
# With code + 1/2, of nine bits, a product has the 24 bits of a float32.
_BITS_OF_STEP = 15


def dot(queries: jax.Array, vectors: jax.Array) -> jax.Array:
  """[Q, d] x [n, d] -> [Q, n], in the dtype of the queries."""
  return jax.lax.dot_general(
      queries, vectors.astype(queries.dtype), (((1,), (1,)), ((), ())),
      precision=jax.lax.Precision.HIGHEST,
  )


class Quantiser:
  """Properties of a quantiser.

  Attributes:
    dtype: dtype of the codes.
    is_exact: whether the scores of devices are exact.
    is_decoded: whether a CPU decodes codes to score them.
  """

  dtype: Any = 'uint8'
  is_exact: ClassVar[bool] = False
  is_decoded: Any = True

  @property
  def norm_bound(self) -> float | None:
    """An upper bound of norms of decoded vectors and their parts, or None."""
    return None

  def map_queries(self, queries: np.ndarray) -> np.ndarray:
    """Queries as `scores` takes them, float32 [Q, d]; here unchanged."""
    return queries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Floats(Quantiser):
  """Rounded to nearest even: float32, float16 or bfloat16."""

  dim: int = dataclasses.field(metadata={'static': True})
  dtype: str = dataclasses.field(
      default='float32', metadata={'static': True}
  )
  is_decoded = False

  @property
  def width(self) -> int:
    return self.dim

  def encode(self, vectors: np.ndarray) -> np.ndarray:
    """Raises UserError where a number is beyond float16."""
    with np.errstate(over='ignore'):
      codes = vectors.astype(np.dtype(self.dtype))
    beyond = np.flatnonzero(~np.isfinite(codes).all(axis=1))
    if len(beyond):
      found = np.abs(vectors[beyond[0]]).max()
      raise UserError(
          f'row {beyond[0]} of the vectors has a component of {found:.3g}:'
          f' {self.dtype} ends at {ml_dtypes.finfo(self.dtype).max:.5g}.'
          ' Normalise the vectors, or take bf16.'
      )
    return codes

  def decode(self, codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.float32)

  def scores(self, queries: jax.Array, codes: jax.Array) -> jax.Array:
    return dot(queries, codes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Int8(Quantiser):
  """Codes 0 to 255 of each dimension for low + step (code + 1/2).

  These are faiss's QT_8bit and the codes of sentence-transformers' uint8, whose
  values lie half a step lower. A step has 15 significant bits, which makes
  step (code + 1/2) exact, so that fused and separate additions agree. `low` and
  `step` are float32 [d]; the step of a constant dimension is 0.
  """

  low: Any
  step: Any

  @classmethod
  def from_ranges(cls, low: np.ndarray, high: np.ndarray) -> 'Int8':
    """Makes codes for ranges low to high [d]; numbers beyond are clipped."""
    low = low.astype(np.float32)
    # A step that is rounded down would leave the greatest number out.
    mantissa, exponent = np.frexp((high.astype(np.float64) - low) / 255)
    step = np.ldexp(np.ceil(mantissa * 2**_BITS_OF_STEP), exponent)
    return cls(low, (step / 2**_BITS_OF_STEP).astype(np.float32))

  @property
  def dim(self) -> int:
    return len(self.low)

  @property
  def width(self) -> int:
    return self.dim

  @property
  def norm_bound(self) -> float:
    longest = np.abs(self.low.astype(np.float64)) + 256.0 * self.step
    return float(np.linalg.norm(longest))

  def encode(self, vectors: np.ndarray) -> np.ndarray:
    step = np.where(self.step > 0, self.step, 1).astype(np.float32)
    codes = np.floor((vectors - self.low) / step)
    return np.clip(codes, 0, 255).astype(np.uint8)

  def decode(self, codes: np.ndarray) -> np.ndarray:
    half = np.float32(0.5)
    return self.low + self.step * (codes.astype(np.float32) + half)

  def scores(self, queries: jax.Array, codes: jax.Array) -> jax.Array:
    parts = self.step[None] * (codes.astype(jnp.float32) + 0.5)
    return dot(queries, self.low[None] + parts)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Signs(Quantiser):
  """A bit for each component, 1 from 0 on; bits stand for +1 and -1.

  Codes are those of `np.packbits`: the first dimension is the highest bit of
  the first byte, unsigned.
  """

  dim: int = dataclasses.field(metadata={'static': True})

  @property
  def width(self) -> int:
    return -(-self.dim // 8)

  @property
  def norm_bound(self) -> float:
    return float(np.sqrt(self.dim))

  def encode(self, vectors: np.ndarray) -> np.ndarray:
    return np.packbits(vectors >= 0, axis=1)

  def decode(self, codes: np.ndarray) -> np.ndarray:
    return _SIGNS.take(codes, axis=0).reshape(len(codes), -1)[:, : self.dim]

  def scores(self, queries: jax.Array, codes: jax.Array) -> jax.Array:
    return dot(queries, self._signs(codes))

  def _signs(self, codes: jax.Array) -> jax.Array:
    """+1 or -1, float32 [n, d]."""
    shifts = jnp.arange(7, -1, -1, dtype=jnp.uint8)
    bits = (codes[:, :, None] >> shifts[None, None]) & np.uint8(1)
    bits = bits.reshape(len(codes), -1)[:, : self.dim]
    return bits.astype(jnp.float32) * 2 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Hamming(Signs):
  """Sign bits, compared with signs of queries: d - 2 (bits that differ).

  Queries are +1 and -1, so that the scores are whole numbers.
  """

  dim: int = dataclasses.field(metadata={'static': True})
  is_exact: ClassVar[bool] = True
  is_decoded = False

  def map_queries(self, queries: np.ndarray) -> np.ndarray:
    """The signs of queries, +1 or -1: float32 [Q, d]."""
    return np.where(queries >= 0, 1, -1).astype(np.float32)

  def scores(self, queries: jax.Array, codes: jax.Array) -> jax.Array:
    if jax.default_backend() != 'cpu':
      # The units for products are fastest with bfloat16; ones are exact in it.
      ones = queries.astype(jnp.bfloat16), self._signs(codes)
      found = jax.lax.dot_general(
          ones[0], ones[1].astype(jnp.bfloat16), (((1,), (1,)), ((), ())),
          preferred_element_type=jnp.float32,
      )
      return found.astype(queries.dtype)
    words = _words(jnp.packbits(queries >= 0, axis=1)), _words(codes)

    def some(queries):
      """[words, q] -> [q, n]; word by word of many codes: that vectorises."""
      differ = sum(
          jax.lax.population_count(one[:, None] ^ other[None])
          for one, other in zip(queries, words[1])
      )
      return (self.dim - 2 * differ.astype(jnp.int32)).astype(dtype)

    # Codes are read once for a few queries.
    count, dtype = len(queries), queries.dtype
    group = next(g for g in (8, 4, 2, 1) if count % g == 0)
    groups = words[0].reshape(len(words[0]), -1, group).swapaxes(0, 1)
    return jax.lax.map(some, groups).reshape(count, len(codes))


def _words(codes: jax.Array) -> jax.Array:
  """Bytes [n, w] in the largest words that they fill: [words, n]."""
  size = next(s for s in (4, 2, 1) if codes.shape[1] % s == 0)
  if size > 1:
    codes = jax.lax.bitcast_convert_type(
        codes.reshape(len(codes), -1, size),
        {4: jnp.uint32, 2: jnp.uint16}[size],
    )
  return jax.lax.optimization_barrier(codes.T)


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
  """Packs whole numbers [n, d] below 2^bits, the lowest bits first."""
  if bits == 8:
    return numbers.astype(np.uint8)
  each = (numbers[:, :, None] >> np.arange(bits)) & 1
  return np.packbits(
      each.astype(bool).reshape(len(numbers), -1), axis=1, bitorder='little'
  )


def unpack(codes: Any, bits: int, count: int, xp: Any = np) -> Any:
  """Unpacks `count` numbers of each row, by numpy or jax.numpy: int32."""
  if 8 % bits == 0:
    # Each byte has whole numbers.
    shifts = xp.arange(0, 8, bits, dtype=xp.uint8)[None, None]
    each = (codes[:, :, None] >> shifts) & xp.uint8(2**bits - 1)
    return each.reshape(len(codes), -1)[:, :count].astype(xp.int32)
  each = (codes[:, :, None] >> xp.arange(8, dtype=xp.uint8)[None, None]) & 1
  each = each.reshape(len(codes), -1)[:, : count * bits]
  each = each.reshape(len(codes), count, bits).astype(xp.int32)
  return xp.sum(each << xp.arange(bits)[None, None], axis=2, dtype=xp.int32)
