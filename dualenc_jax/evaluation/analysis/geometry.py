"""Measures of unit vectors: uniformity, similarity ratios, balance of signs.

Uniformity is that of Wang and Isola, "Understanding Contrastive Representation
Learning through Alignment and Uniformity on the Hypersphere" (ICML 2020);
ratios of query-query to query-passage similarities are those of SamToNe's
figure 6. Everything is computed in float64, a block at a time:
nothing of size n x n is held.
"""

import numpy as np

BLOCK = 1024
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


def uniformity(vectors: np.ndarray, block: int = BLOCK) -> float:
  """How evenly vectors [n, D], n at least 2, lie on the sphere.

    log E_(x, y) exp(-2 ||x - y||^2)    over the pairs of distinct rows

  Lower is more even: 0 where all are one point, -4 where all are orthonormal.
  """
  vectors = vectors.astype(np.float64)
  count, total = len(vectors), 0.0
  squares = np.sum(vectors**2, axis=1)
  for start in range(0, count, block):
    rows = np.arange(start, min(start + block, count))
    products = vectors[rows] @ vectors.T
    distances = squares[rows, None] + squares[None, :] - 2 * products
    potential = np.exp(-2 * np.maximum(distances, 0))
    potential[rows - start, rows] = 0
    total += potential.sum()
  return float(np.log(total / (count * (count - 1))))


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


def dimensional_efficiency(vectors: np.ndarray) -> float:
  """How evenly the signs of vectors [n, D] are balanced, as in BPR's codes.

    4/D sum_d P_d (1 - P_d)    P_d: the share whose component d is at least 0

  This is equation 3 of Thakur et al. (2022), scaled so that 1 is every sign in
  balance. It does not foretell quality there.
  """
  shares = np.mean(vectors >= 0, axis=0)
  return float(4 * np.mean(shares * (1 - shares)))
