"""Measures of unit vectors: alignment, uniformity, neighbours, ratios, signs.

Alignment and uniformity are those of Wang and Isola, "Understanding Contrastive
Representation Learning through Alignment and Uniformity on the Hypersphere"
(ICML 2020); ratios of query-query to query-passage similarities are those of
SamToNe's figure 6. Everything is computed in float64, a block at a time:
nothing of size n x n is held.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK = 1024
# Cosines above it are of equal vectors, up to the rounding of float32.
_SAME = 1 - 1e-6
DRAWS = 50_000
# A smaller denominator is noise: the ratio would say nothing.
TINY = 1e-6


def unit_rows(vectors: np.ndarray) -> np.ndarray:
  """Vectors [n, D] of any float dtype, scaled to length 1: float32 [n, D].

  A row that is zero stays so.
  """
  vectors = vectors.astype(np.float64)
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def alignment(
    queries: np.ndarray, passages: np.ndarray, alpha: float = 2.0
) -> float:
  """How close the vectors [n, D] of positive pairs are: E ||q - p||^alpha.

  For unit vectors and alpha 2 it is 2 - 2 E cos(q, p), from 0 to 4.
  """
  difference = queries.astype(np.float64) - passages.astype(np.float64)
  return float(np.mean(np.linalg.norm(difference, axis=1) ** alpha))


def uniformity(
    vectors: np.ndarray, t: float = 2.0, block: int = BLOCK
) -> float:
  """How evenly vectors [n, D], n at least 2, lie on the sphere.

    log E_(x, y) exp(-t ||x - y||^2)    over the pairs of distinct rows

  Lower is more even: 0 where all are one point, -2 t where all are orthonormal.
  """
  total = 0.0
  squares = np.sum(vectors.astype(np.float64) ** 2, axis=1)
  for start, products in _products(vectors, block):
    rows = np.arange(start, start + len(products))
    distances = squares[rows, None] + squares[None, :] - 2 * products
    potential = np.exp(-t * np.maximum(distances, 0))
    potential[rows - start, rows] = 0
    total += potential.sum()
  count = len(vectors)
  return float(np.log(total / (count * (count - 1))))


def near_duplicates(vectors: np.ndarray, block: int = BLOCK) -> float:
  """The share of unit vectors that another all but equals.

  That is one with a cosine above 1 - 1e-6, an angle of 0.08 degrees.
  """
  near = []
  for start, products in _products(vectors, block):
    rows = np.arange(len(products))
    products[rows, start + rows] = -np.inf
    near.append(products.max(axis=1) > _SAME)
  return float(np.mean(np.concatenate(near)))


def repeats(values: np.ndarray) -> float:
  """The share of values [n] that are equal to an earlier one."""
  return 1 - len(np.unique(values)) / len(values)


def _products(
    vectors: np.ndarray, block: int
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields (first row, its block's dot products with all: [block, n])."""
  vectors = vectors.astype(np.float64)
  for start in range(0, len(vectors), block):
    yield start, vectors[start : start + block] @ vectors.T


def similarity_ratios(
    queries: np.ndarray, passages: np.ndarray, draws: int = DRAWS, seed: int = 0
) -> np.ndarray:
  """sim(q_i, q_j) / sim(q_i, p_j) of pairs i != j, drawn with replacement.

  Args:
    queries: float [n, D], unit vectors, n at least 2.
    passages: float [n, D], unit vectors; p_j belongs to q_j.
    draws: how many pairs; those whose denominator is below `TINY` are left out.
    seed: of the draws.

  Returns:
    float64 [at most draws].
  """
  rng = np.random.default_rng(seed)
  first = rng.integers(len(queries), size=draws)
  # From 1 to n - 1 places further on, in a circle: never itself.
  second = (first + rng.integers(1, len(queries), size=draws)) % len(queries)
  values = []
  for start in range(0, draws, BLOCK):
    i, j = first[start : start + BLOCK], second[start : start + BLOCK]
    anchors = queries[i].astype(np.float64)
    numerators = np.sum(anchors * queries[j], axis=1)
    denominators = np.sum(anchors * passages[j], axis=1)
    usable = np.abs(denominators) >= TINY
    values.append(numerators[usable] / denominators[usable])
  return np.concatenate(values)


def share_within(values: np.ndarray, low: float, high: float) -> float:
  """Of values [n], those from `low` to `high`; NaN of none."""
  inside = (values >= low) & (values <= high)
  return float(inside.mean()) if len(inside) else float('nan')


def bit_numbers(vectors: np.ndarray) -> dict[str, float]:
  """How much the signs of vectors [n, D] say, which an index of bits is left.

  With P_d the share of them whose component d is at least 0:

  Returns:
    dimensional_efficiency: 4/D sum_d P_d (1 - P_d), equation 3 of Thakur et al.
      (2022) scaled so that 1 is every bit in balance. It does not foretell
      quality there.
    bit_entropy: mean entropy of a bit, 1 where it is in balance.
    byte_entropy: the same of eight neighbouring bits together, over 8: below
      bit_entropy where bits depend on each other.
    bit_correlation: mean |correlation| of two dimensions' bits; of those that
      are constant none counts.
    distinct_codes: different codes over vectors.
  """
  from scipy import stats

  def entropy(counts: Any) -> float:
    return float(np.mean(stats.entropy(counts, base=2)))

  bits = vectors >= 0
  codes, ones = np.packbits(bits, axis=1), bits.mean(axis=0)
  of_bytes = [np.bincount(column, minlength=256) for column in codes.T]
  values = {
      'dimensional_efficiency': float(4 * np.mean(ones * (1 - ones))),
      'bit_entropy': entropy([ones, 1 - ones]),
      'byte_entropy': entropy(np.transpose(of_bytes)) / 8,
      'distinct_codes': len(np.unique(codes, axis=0)) / len(codes),
  }
  varying = bits[:, (ones > 0) & (ones < 1)]
  count = varying.shape[1]
  if count > 1:
    correlations = np.abs(np.corrcoef(varying, rowvar=False))
    others = correlations.sum() - np.trace(correlations)
    values['bit_correlation'] = float(others / (count * (count - 1)))
  return values
