"""Product codes: the number of a centroid for each part of a vector.

Shapes: n vectors, D dims, M parts of d = D/M dims, K = 2^b centroids of a part,
Q queries.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.retrieval.compression import kmeans, quantisers
from dualenc_jax.retrieval.compression.quantisers import pack, unpack

# Tables that are added up in one loop body.
_UNROLLED = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Product(quantisers.Quantiser):
  """The number of the nearest centroid for each part (Jegou et al. 2011).

  Attributes:
    assign: float32 [M, K, d], the centroids by which codes are chosen.
    score: float32 [M, K, d], the centroids that codes stand for: `assign`,
      unless they were trained further (JPQ).
  """

  assign: Any
  score: Any

  @property
  def is_decoded(self) -> bool:
    # Tables of single dims save nothing.
    return self.score.shape[2] == 1

  @property
  def parts(self) -> int:
    """M."""
    return self.score.shape[0]

  @property
  def bits(self) -> int:
    """b."""
    return (self.score.shape[1] - 1).bit_length()

  @property
  def dim(self) -> int:
    return self.parts * self.score.shape[2]

  @property
  def width(self) -> int:
    return -(-self.parts * self.bits // 8)

  @property
  def norm_bound(self) -> float:
    squares = np.square(np.asarray(self.score, np.float64)).sum(axis=2)
    return float(np.sqrt(squares.max(axis=1).sum()))

  def encode(self, vectors: np.ndarray) -> np.ndarray:
    """uint8 [n, w]; of equally near centroids the first."""
    return pack(encode(vectors, self.assign), self.bits)

  def decode(self, codes: np.ndarray) -> np.ndarray:
    numbers = unpack(codes, self.bits, self.parts)
    return decode(numbers, np.asarray(self.score))

  def scores(self, queries: jax.Array, codes: jax.Array) -> jax.Array:
    numbers = unpack(codes, self.bits, self.parts, jnp)
    if jax.default_backend() == 'cpu' and not self.is_decoded:
      return self._by_tables(queries, numbers)
    return quantisers.dot(queries, self.values(numbers))

  def values(self, numbers: jax.Array) -> jax.Array:
    """The vectors that codes stand for: int32 [..., M] -> float32 [..., D]."""
    parts, size, _ = self.score.shape
    rows = numbers + jnp.arange(0, parts * size, size, dtype=jnp.int32).reshape(
        (1,) * (numbers.ndim - 1) + (parts,)
    )
    flat = jnp.asarray(self.score).reshape(parts * size, -1)
    found = jnp.take(flat, rows, axis=0, mode='clip')
    return found.reshape(*numbers.shape[:-1], self.dim)

  def _by_tables(self, queries: jax.Array, numbers: jax.Array) -> jax.Array:
    """Scores as sums of M products, each computed once for every centroid.

    On a CPU it is no slower than a product with decoded vectors, a hundred
    times faster for one query, and needs no memory for these.
    """
    parts = self.parts
    tables = jnp.einsum(
        'qms,mjs->mjq', queries.reshape(len(queries), parts, -1),
        jnp.asarray(self.score, queries.dtype), precision='highest',
    )

    def several(total, both):
      for table, column in zip(*both):
        total += jnp.take(table, column, axis=0, mode='clip')
      return total, None

    group = next(g for g in range(_UNROLLED, 0, -1) if parts % g == 0)
    columns = numbers.T
    total, _ = jax.lax.scan(
        several, jnp.zeros((numbers.shape[0], len(queries)), queries.dtype),
        (
            tables.reshape(-1, group, *tables.shape[1:]),
            columns.reshape(-1, group, columns.shape[1]),
        ),
    )
    return total.T


def encode(vectors: Any, centroids: np.ndarray) -> np.ndarray:
  """Numbers of the nearest centroids of every part, uint8 [n, M].

  Vectors are an array [n, D] or a store of rows, read a part at a time;
  centroids are [M, K, d], with K at most 256.
  """
  m, _, dims = centroids.shape
  codes = np.empty((len(vectors), m), np.uint8)
  if not len(vectors):
    return codes
  blocks = kmeans.split(
      vectors, lambda x: x.reshape(-1, m, dims).transpose(2, 1, 0)
  )
  first = 0
  centroids = np.asarray(centroids, np.float32)
  for part in kmeans.map_blocks(_codes, blocks, centroids):
    rows = codes[first : first + len(part)]
    rows[:] = part[: len(rows)]
    first += len(part)
  return codes


def decode(codes: np.ndarray, centroids: np.ndarray) -> np.ndarray:
  """The centroids that codes, [n, M], stand for: float32 [n, D]."""
  parts = centroids[np.arange(codes.shape[1]), codes]
  return parts.reshape(len(codes), -1)


@jax.jit
def _codes(parts: jax.Array, used: jax.Array, centroids: jax.Array):
  """uint8 [R, M] of a block."""
  del used  # The caller cuts off the padding of the last block.
  return kmeans.nearest(parts, centroids).T.astype(jnp.uint8)
