"""Linear maps in front of a quantiser: principal directions and OPQ.

Ge et al., Optimized Product Quantization (2013): the parametric solution, from
the principal directions, is where the non-parametric one starts, which finds
codes for a rotation and the rotation for codes, in turns. A random start ends
worse, or needs many more turns.

Shapes: n vectors, D dims, d dims of a map or of one of M parts, K centroids of
a part.
"""

from collections.abc import Iterable
import dataclasses
import logging
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.retrieval.compression import kmeans

# k-means iterations: of the first codes, of codes from the last ones, and of
# the codes for the rotation that is kept.
_FIRST, _NEXT, _LAST = 10, 4, 25
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
  """The map y = A x, scaled to length one if `normalise`.

  It has no offset: the same shift of queries and passages would add a term to
  each score that depends on the passage, and so change the ranking.

  Attributes:
    matrix: A, float32 [d, D].
    normalise: whether y is scaled to length one.
  """

  matrix: Any
  normalise: bool = False

  @property
  def dim(self) -> int:
    return len(self.matrix)

  def __call__(self, vectors: np.ndarray) -> np.ndarray:
    """Maps passages or queries: float32 [n, D] -> [n, d]."""
    # In float64 a row does not depend on its neighbours.
    matrix = np.asarray(self.matrix, np.float64)
    found = vectors.astype(np.float64) @ matrix.T
    if self.normalise:
      lengths = np.linalg.norm(found, axis=1, keepdims=True)
      found /= np.where(lengths == 0, 1, lengths)
    return found.astype(np.float32)


def pca(blocks: Iterable[np.ndarray], dim: int) -> np.ndarray:
  """The top eigenvectors of the second moments, float32 [d, D], for y = A x.

  They have the least squared error of all maps to d dims. Moments are not
  centred, and nothing is subtracted from vectors: that would change the
  ranking, as (q - m).(p - m) = q.p - m.p + const(q), and m.p differs between
  passages.

  Vectors come in blocks [b, D], read once. Directions have the sign that makes
  their greatest entry positive.
  """
  total: Any = 0
  count = 0
  for block in blocks:
    block = np.asarray(block, np.float64)
    total = total + block.T @ block
    count += len(block)
  matrix = np.linalg.eigh(total / count)[1][:, ::-1][:, :dim].T
  greatest = np.abs(matrix).argmax(axis=1)[:, np.newaxis]
  chosen = np.take_along_axis(matrix, greatest, axis=1)
  return (np.where(chosen < 0, -1.0, 1.0) * matrix).astype(np.float32)


def opq(
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
    outer: the number of rotations that are fitted, one after the other.

  Returns:
    R, float32 [D, D], for y = R x, and centroids, float32 [M, K, d], of y.
  """
  count = len(vectors)
  # It takes minutes for 65,536 vectors of 768 dims.
  _LOG.info(
      'Learning the rotation of opq:%d on %s vectors of %d dims, %d times.',
      m, f'{count:,}', vectors.shape[1], outer,
  )
  mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
  centred = vectors - mean
  blocks = list(kmeans.split(centred, lambda x: x))
  rotation = balanced_rotation(centred, m)
  centroids, iterations = None, _FIRST
  for _ in range(outer):
    rotated = (centred @ rotation.T).reshape(count, m, -1)
    centroids = kmeans.fit(rotated, 2**bits, seed, iterations, centroids)
    cross = kmeans.sum_blocks(_cross, blocks, rotation, centroids)
    rotation = _nearest_rotation(cross)
    iterations = _NEXT
  if centroids is not None:
    shift = (rotation.astype(np.float64) @ mean).reshape(m, 1, -1)
    centroids = (centroids + shift).astype(np.float32)
  rotated = (vectors @ rotation.T).reshape(count, m, -1)
  return rotation, kmeans.fit(rotated, 2**bits, seed, _LAST, centroids)


def balanced_rotation(vectors: np.ndarray, m: int) -> np.ndarray:
  """Shares out the principal directions so that parts vary alike.

  Each direction, the greatest first, goes to the part that is not full and has
  the least product of variances (Ge et al., eigenvalue allocation). Vectors are
  float32 [n, D], of mean zero; the result is float32 [D, D].
  """
  dim = vectors.shape[1]
  variances, directions = np.linalg.eigh(vectors.T @ vectors)
  # Logarithms of variances over that of rounding.
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


@jax.jit
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
  del used  # Rows of padding are zero, and so are their products.
  return lax.dot_general(
      values, vectors, (((0,), (0,)), ((), ())), precision='highest'
  )


def _nearest_rotation(cross: np.ndarray) -> np.ndarray:
  """R that maximises the sum of xhat.(R x), for cross = sum of xhat x^T."""
  left, _, right = np.linalg.svd(cross)
  return (left @ right).astype(np.float32)
