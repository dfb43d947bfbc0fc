"""Product codes: for each part of a vector the number of a centroid.

Shapes: n vectors, D dims, M parts of d = D/M dims, K centroids of a part.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.compression import kmeans
from dualenc_jax.compression.lanes import Lanes
from dualenc_jax.errors import UserError


def encode(
    vectors: Any,
    centroids: np.ndarray,
    mesh: jax.sharding.Mesh | None = None,
) -> np.ndarray:
  """The nearest centroid, by L2, of every part of every vector.

  Args:
    vectors: [n, D], an array or a store of rows, read a part at a time.
    centroids: float32 [M, K, d]; K at most 256.
    mesh: whose devices to use, all of this host by default.

  Returns:
    uint8 [n, M].

  Raises:
    UserError: vectors of another dim than the centroids.
  """
  m, _, dims = centroids.shape
  _check_dim(vectors, centroids)
  codes = np.empty((len(vectors), m), np.uint8)
  if not len(vectors):
    return codes
  lanes = Lanes(mesh)
  blocks = lanes.blocks(
      vectors, lambda x: x.reshape(-1, m, dims).transpose(2, 1, 0)
  )
  first = 0
  for part in lanes.run(_codes, blocks, np.asarray(centroids, np.float32)):
    rows = codes[first : first + len(part)]
    rows[:] = part[: len(rows)]
    first += len(part)
  return codes


def decode(codes: np.ndarray, centroids: np.ndarray) -> np.ndarray:
  """The centroids that codes, [n, M], stand for: float32 [n, D]."""
  parts = centroids[np.arange(codes.shape[1]), codes]
  return parts.reshape(len(codes), -1)


def distortion(vectors: Any, centroids: np.ndarray) -> float:
  """The mean squared distance of vectors from what their codes stand for.

  Args:
    vectors: [n, D], at least one.
    centroids: float32 [M, K, d].
  """
  codes = encode(vectors, centroids)
  total = 0.0
  for first in range(0, len(codes), 4096):
    rows = slice(first, first + 4096)
    error = np.asarray(vectors[rows], np.float64)
    error -= decode(codes[rows], centroids)
    total += np.sum(error * error)
  return float(total / len(codes))


def _codes(parts: jax.Array, used: jax.Array, centroids: jax.Array):
  """uint8 [R, M] of a lane."""
  del used  # What fills up the last lane is cut off.
  return kmeans.nearest(parts, centroids).T.astype(jnp.uint8)


def _check_dim(vectors: Any, centroids: np.ndarray) -> None:
  m, _, dims = centroids.shape
  if vectors.shape[1] != m * dims:
    raise UserError(
        f'vectors have dim {vectors.shape[1]}: expected {m * dims}, {m} parts'
        f' of {dims} dims as of the centroids.'
    )
