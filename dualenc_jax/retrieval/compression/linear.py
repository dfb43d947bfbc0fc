"""Linear maps in front of a quantiser: to fewer dims, and rotations.

Shapes: n vectors [n, D], d dims that are kept.
"""

from collections.abc import Iterable
import dataclasses
from typing import Any

import numpy as np


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
    # In float64, so that a row does not depend on those beside it.
    matrix = np.asarray(self.matrix, np.float64)
    found = vectors.astype(np.float64) @ matrix.T
    if self.normalise:
      lengths = np.linalg.norm(found, axis=1, keepdims=True)
      found /= np.where(lengths == 0, 1, lengths)
    return found.astype(np.float32)


def pca(blocks: Iterable[np.ndarray], dim: int) -> np.ndarray:
  """The top eigenvectors of the second moments, float32 [d, D], for y = A x.

  Of all maps to d dims they have the least squared error. Moments are not
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


def random_rotation(dim: int, seed: int) -> np.ndarray:
  """float32 [D, D]: an orthogonal matrix, each as likely as any other.

  Q of the QR decomposition of normally distributed numbers, where R's diagonal
  is positive; without that, signs would depend on the library.
  """
  normal = np.random.default_rng(seed).standard_normal((dim, dim))
  rotation, upper = np.linalg.qr(normal)
  return (rotation * np.sign(np.diag(upper))).astype(np.float32)
