"""Linear maps in front of a quantiser: to fewer dims, and rotations.

Shapes: n passages P [n, D], Q queries [Q, D], d dims that are kept.
"""

from collections.abc import Iterable
import dataclasses
from typing import Any

import numpy as np

# Eigenvalues below so much of the greatest are rounding.
_SINGULAR = 1e-10


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
  """The map y = A x, scaled to length one if `normalise`.

  It has no offset: the same shift of queries and passages would add a term to
  each score that depends on the passage, and so change the ranking.

  Attributes:
    matrix: A, float32 [d, D].
    queries: the matrix of queries; None where it is the same.
    normalise: whether y is scaled to length one.
  """

  matrix: Any
  queries: Any = None
  normalise: bool = False

  @property
  def dim(self) -> int:
    return len(self.matrix)

  def __call__(self, vectors: np.ndarray) -> np.ndarray:
    """Maps passages: float32 [n, D] -> [n, d]."""
    return self._apply(self.matrix, vectors)

  def of_queries(self, vectors: np.ndarray) -> np.ndarray:
    """Maps queries: float32 [n, D] -> [n, d]."""
    return self._apply(
        self.matrix if self.queries is None else self.queries, vectors
    )

  def _apply(self, matrix, vectors):
    # In float64, so that a row does not depend on those beside it.
    found = vectors.astype(np.float64) @ np.asarray(matrix, np.float64).T
    if self.normalise:
      lengths = np.linalg.norm(found, axis=1, keepdims=True)
      found /= np.where(lengths == 0, 1, lengths)
    return found.astype(np.float32)


def pca(
    blocks: Iterable[np.ndarray], dim: int, centred: bool = False,
    queries: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """The matrices that keep most of the passages, or of queries' scores.

  Both are used without any bias. Centring passages and queries would change
  the ranking: (q - m).(p - m) = q.p - m.p + const(q), and m.p differs between
  passages. So `centred` is about the fit alone.

  Without queries, the rows are the top eigenvectors of the second moments
  P^T P / n: of all maps to d dims, the least squared error of P. With them, it
  is the least squared error of the scores,

    min over B of rank d of |Q P^T - Q B P^T|_F.

  With C_q = Q^T Q, C_p = P^T P it is |C_q^1/2 (I - B) C_p^1/2|_F, so by Eckart
  and Young C_q^1/2 B C_p^1/2 = U_d S_d V_d^T, the first d of the singular
  value decomposition of C_q^1/2 C_p^1/2. Queries then have the matrix
  S_d^1/2 U_d^T C_q^-1/2 and passages S_d^1/2 V_d^T C_p^-1/2, where the inverses
  are pseudo-inverses: what no query or no passage has is not needed.

  Passages come in blocks [b, D], read once. Both matrices are float32 [d, D],
  for y = A x, the same array without queries. Directions come with the sign
  that makes their greatest entry (of the passages' matrix) positive.
  """
  passages = _second_moments(blocks, centred)
  if queries is None:
    matrix = np.linalg.eigh(passages)[1][:, ::-1][:, :dim].T
    matrix = (_signs(matrix) * matrix).astype(np.float32)
    return matrix, matrix
  root_q, inverse_q = _roots(_second_moments([queries], centred))
  root_p, inverse_p = _roots(passages)
  left, values, right = np.linalg.svd(root_q @ root_p)
  scale = np.sqrt(values[:dim])[:, np.newaxis]
  of_passages = scale * (right[:dim] @ inverse_p)
  of_queries = scale * (left.T[:dim] @ inverse_q)
  signs = _signs(of_passages)
  return (
      (signs * of_passages).astype(np.float32),
      (signs * of_queries).astype(np.float32),
  )


def random_rotation(dim: int, seed: int) -> np.ndarray:
  """float32 [D, D]: an orthogonal matrix, each as likely as any other.

  Q of the QR decomposition of normally distributed numbers, where R's diagonal
  is positive; without that, signs would depend on the library.
  """
  normal = np.random.default_rng(seed).standard_normal((dim, dim))
  rotation, upper = np.linalg.qr(normal)
  return (rotation * np.sign(np.diag(upper))).astype(np.float32)


def _second_moments(blocks: Iterable[np.ndarray], centred: bool) -> np.ndarray:
  """float64 [D, D]: X^T X / n, of differences from the mean if centred."""
  total: Any = None
  mean: Any = None
  count = 0
  for block in blocks:
    block = np.asarray(block, np.float64)
    if not count:
      total, mean = np.zeros((block.shape[1],) * 2), np.zeros(block.shape[1])
    both = count + len(block)
    if centred:
      # Chan et al.: differences from means, which cancel nothing.
      own = block.mean(axis=0)
      block = block - own
      apart = own - mean
      total += np.outer(apart, apart) * (count * (both - count) / both)
      mean += apart * ((both - count) / both)
    total += block.T @ block
    count = both
  return total / count


def _roots(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The symmetric square root, and its pseudo-inverse."""
  values, vectors = np.linalg.eigh(moments)
  kept = values > _SINGULAR * max(values.max(), 0)
  roots = np.sqrt(np.where(kept, values, 0))
  inverse = np.divide(1, roots, out=np.zeros_like(roots), where=kept)
  return (vectors * roots) @ vectors.T, (vectors * inverse) @ vectors.T


def _signs(matrix: np.ndarray) -> np.ndarray:
  """[d, 1]: of the greatest entry of each row."""
  greatest = np.abs(matrix).argmax(axis=1)[:, np.newaxis]
  chosen = np.take_along_axis(matrix, greatest, axis=1)
  return np.where(chosen < 0, -1.0, 1.0)
