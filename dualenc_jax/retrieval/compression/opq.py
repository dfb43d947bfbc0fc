"""Optimised product quantisation: the rotation before the codes is fitted.

Ge et al., Optimized Product Quantization (2013): the parametric solution, from
the principal directions, is where the non-parametric one starts, which finds
codes for a rotation and the rotation for codes, in turns. A random start ends
worse, or needs many more turns.

Shapes: n vectors, D dims, M parts of d dims, K centroids of a part.
"""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.retrieval.compression import kmeans, lanes

# k-means iterations: of the first codes, of codes from the last ones, and of
# the codes for the rotation that is kept.
_FIRST, _NEXT, _LAST = 10, 4, 25


def fit(
    vectors: np.ndarray, m: int, bits: int, seed: int, outer: int = 20
) -> tuple[np.ndarray, np.ndarray]:
  """Minimises |R x - PQ(R x)|^2 over rotations R and codebooks.

  The vectors are centred for the fit of R alone, as a shift moves centroids at
  no cost. Codes are made of y = R x, without a shift, and the returned
  centroids are fitted to that.

  Args:
    vectors: float32 [n, D]; a sample of 65,536 is plenty.
    m: M.
    bits: b, of a code; K = 2^b.
    seed: seed of the first centroids.
    outer: the number of rotations that are fitted, one after the other. The
      error may still fall after dozens, where few directions hold much.

  Returns:
    R, float32 [D, D], for y = R x, and centroids, float32 [M, K, d], of y.
  """
  count = len(vectors)
  mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
  centred = vectors - mean
  blocks = list(lanes.blocks(centred, lambda x: x))
  rotation = balanced_rotation(centred, m)
  centroids, iterations = None, _FIRST
  for _ in range(outer):
    rotated = (centred @ rotation.T).reshape(count, m, -1)
    centroids = kmeans.fit(rotated, 2**bits, seed, iterations, centroids)
    cross = lanes.total(_cross, blocks, rotation, centroids)
    rotation = _nearest_rotation(cross)
    iterations = _NEXT
  if centroids is not None:
    shift = (rotation.astype(np.float64) @ mean).reshape(m, 1, -1)
    centroids = (centroids + shift).astype(np.float32)
  rotated = (vectors @ rotation.T).reshape(count, m, -1)
  return rotation, kmeans.fit(rotated, 2**bits, seed, _LAST, centroids)


def balanced_rotation(vectors: np.ndarray, m: int) -> np.ndarray:
  """Principal directions, shared out so that parts vary alike.

  Each direction, the greatest first, goes to the part that is not full and has
  the least product of variances (Ge et al., eigenvalue allocation). Vectors are
  float32 [n, D], of mean zero; the result is float32 [D, D].
  """
  dim = vectors.shape[1]
  variances, directions = np.linalg.eigh(vectors.T @ vectors)
  # Logarithms, from that of what is rounding.
  least = max(variances[-1] * 1e-7, np.finfo(np.float32).tiny)
  share = np.log(np.maximum(variances / least, 1))
  parts: list[list[int]] = [[] for _ in range(m)]
  shares = np.zeros(m)
  for i in reversed(range(dim)):
    open_ = [len(part) < dim // m for part in parts]
    part = int(np.argmin(np.where(open_, shares, np.inf)))
    parts[part].append(i)
    shares[part] += share[i]
  return directions.T[np.concatenate(parts)].astype(np.float32)


def _cross(
    vectors: jax.Array, used: jax.Array, rotation: jax.Array,
    centroids: jax.Array,
) -> jax.Array:
  """[D, D]: sum of xhat x^T, where xhat is what the code of R x stands for."""
  m, _, dims = centroids.shape
  rotated = lax.dot_general(
      rotation, vectors, (((1,), (1,)), ((), ())), precision='highest'
  )
  parts = rotated.reshape(m, dims, -1).swapaxes(0, 1)
  which = kmeans.nearest(parts, centroids)
  values = jnp.take_along_axis(
      centroids, which[:, :, jnp.newaxis], axis=1, mode='promise_in_bounds'
  )
  values = values.swapaxes(0, 1).reshape(len(vectors), -1)
  del used  # Rows that fill up the lane are zero, and so are their products.
  return lax.dot_general(
      values, vectors, (((0,), (0,)), ((), ())), precision='highest'
  )


def _nearest_rotation(cross: np.ndarray) -> np.ndarray:
  """R that maximises the sum of xhat.(R x), for cross = sum of xhat x^T."""
  left, _, right = np.linalg.svd(cross)
  return (left @ right).astype(np.float32)
