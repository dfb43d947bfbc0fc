"""Where unit vectors lie: alignment, uniformity, nearest others, ratios.

Alignment and uniformity are those of Wang and Isola, "Understanding Contrastive
Representation Learning through Alignment and Uniformity on the Hypersphere"
(ICML 2020); ratios of query-query to query-passage similarities are those of
SamToNe's figure 6. Everything is computed in float64, a block at a time:
nothing of size n x n is held.
"""

from collections.abc import Iterator
import dataclasses

import numpy as np

_BLOCK = 1024
# Cosines above it are of equal vectors, up to the rounding of float32.
SAME = 1 - 1e-6
DRAWS = 50_000
# A smaller denominator is noise: the ratio would say nothing.
TINY = 1e-6


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


@dataclasses.dataclass(frozen=True)
class Ratios:
  """sim(q_i, q_j) / sim(q_i, p_j) of drawn pairs i != j.

  Attributes:
    values: float64 [at most draws], those with a denominator.
    left_out: draws whose denominator is nearer to 0 than `TINY`.
  """

  values: np.ndarray
  left_out: int

  @property
  def median(self) -> float:
    """NaN if every draw was left out."""
    return float(np.median(self.values)) if len(self.values) else float('nan')

  def share_within(self, low: float, high: float) -> float:
    """Of the values, those from `low` to `high`."""
    inside = (self.values >= low) & (self.values <= high)
    return float(inside.mean()) if len(inside) else float('nan')


def similarity_ratios(
    queries: np.ndarray,
    passages: np.ndarray,
    draws: int = DRAWS,
    seed: int = 0,
) -> Ratios:
  """Draws pairs i != j, with replacement, and takes their ratios.

  Args:
    queries: float [n, D], unit vectors, n at least 2.
    passages: float [n, D], unit vectors; p_j belongs to q_j.
    draws: how many pairs.
    seed: of the draws.
  """
  rng = np.random.default_rng(seed)
  first = rng.integers(len(queries), size=draws)
  # From 1 to n - 1 places further on, in a circle: never itself.
  step = rng.integers(1, len(queries), size=draws)
  second = (first + step) % len(queries)
  values, left_out = [], 0
  for start in range(0, draws, _BLOCK):
    i, j = first[start : start + _BLOCK], second[start : start + _BLOCK]
    anchors = queries[i].astype(np.float64)
    numerators = np.sum(anchors * queries[j], axis=1)
    denominators = np.sum(anchors * passages[j], axis=1)
    usable = np.abs(denominators) >= TINY
    left_out += int(np.count_nonzero(~usable))
    values.append(numerators[usable] / denominators[usable])
  return Ratios(np.concatenate(values), left_out)
