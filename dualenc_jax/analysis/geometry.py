"""Where unit vectors lie: alignment, uniformity, nearest others.

Alignment and uniformity are those of Wang and Isola, "Understanding Contrastive
Representation Learning through Alignment and Uniformity on the Hypersphere"
(ICML 2020). Everything is computed in float64, a block at a time: nothing of
size n x n is held.
"""

from collections.abc import Iterator

import numpy as np

_BLOCK = 1024
# Cosines above it are of equal vectors, up to the rounding of float32.
SAME = 1 - 1e-6


def unit_rows(vectors: np.ndarray) -> np.ndarray:
  """Vectors [n, D] of any float dtype, scaled to length 1: float32 [n, D]."""
  vectors = vectors.astype(np.float64)
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / lengths).astype(np.float32)


def alignment(
    queries: np.ndarray, passages: np.ndarray, alpha: float = 2.0
) -> float:
  """How close the vectors of positive pairs are.

    E_(q, p) ||q - p||^alpha

  Args:
    queries: float [n, D].
    passages: float [n, D], row i relevant for query i.
    alpha: the power.

  Returns:
    0 where each pair is one point; for unit vectors and alpha 2 it is
    2 - 2 E cos(q, p), at most 4.
  """
  difference = queries.astype(np.float64) - passages.astype(np.float64)
  return float(np.mean(np.linalg.norm(difference, axis=1) ** alpha))


def uniformity(vectors: np.ndarray, t: float = 2.0) -> float:
  """How evenly vectors lie on the sphere; lower is more even.

    log E_(x, y) exp(-t ||x - y||^2)    over the pairs of distinct rows

  Args:
    vectors: float [n, D], n at least 2.
    t: how fast the potential falls with the distance.

  Returns:
    0 where all are one point, log(exp(-2 t)) where all are orthonormal.
  """
  total = 0.0
  squares = np.sum(vectors.astype(np.float64) ** 2, axis=1)
  for start, products in _products(vectors):
    rows = slice(start, start + len(products))
    distances = squares[rows, None] + squares[None, :] - 2 * products
    potential = np.exp(-t * np.maximum(distances, 0))
    potential[np.arange(len(products)), np.arange(len(vectors))[rows]] = 0
    total += potential.sum()
  count = len(vectors)
  return float(np.log(total / (count * (count - 1))))


def nearest_cosines(vectors: np.ndarray) -> np.ndarray:
  """For each of n unit vectors its cosine with the nearest other: [n]."""
  nearest = np.empty(len(vectors))
  for start, products in _products(vectors):
    rows = np.arange(len(products))
    products[rows, start + rows] = -np.inf
    nearest[start : start + len(products)] = products.max(axis=1)
  return nearest


def near_duplicates(vectors: np.ndarray) -> float:
  """The share of unit vectors that another all but equals.

  That is one with a cosine above 1 - 1e-6, an angle of 0.08 degrees.
  """
  return float(np.mean(nearest_cosines(vectors) > SAME))


def repeats(values: np.ndarray) -> float:
  """The share of values [n] that are equal to an earlier one."""
  return 1 - len(np.unique(values)) / len(values)


def _products(vectors: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  """Yields (first row, its block's dot products with all: [block, n])."""
  vectors = vectors.astype(np.float64)
  for start in range(0, len(vectors), _BLOCK):
    yield start, vectors[start : start + _BLOCK] @ vectors.T
