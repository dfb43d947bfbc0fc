"""Linear maps of vectors, in front of a quantiser."""

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
