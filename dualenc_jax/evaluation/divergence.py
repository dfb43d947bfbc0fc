"""Divergence of two towers' embeddings of queries: a nearest-neighbour KL.

DAFT (Leonhardt et al. 2022) aligns a query tower to a passage tower until the
divergence of their embeddings of queries is low. The estimator is that of Wang,
Kulkarni and Verdu (2009).
"""

from typing import NamedTuple

import numpy as np

from dualenc_jax.utils.errors import UserError

_BLOCK = 1024
_DRAWS = 1000
# Of the bootstrap's draws, on each side.
_TAIL = 0.025


class Divergence(NamedTuple):
  """An estimate of KL(X || Y), in nats, which may be below 0.

  Between `low` and `high` is its 95% bootstrap interval over the points of X.
  """

  value: float
  low: float
  high: float


class Alignment(NamedTuple):
  """How a query tower's embeddings Y of queries lie to a passage tower's X.

  X and Y are of disjoint halves of the queries, as the estimator needs
  independent samples. KL scales with the dimension, so a threshold is best
  taken between `floor` and the first `forward`.

  Attributes:
    forward: KL(X || Y), DAFT's.
    reverse: KL(Y || X), which a collapsed query tower cannot hide from.
    floor: KL of X from the passage tower's embeddings of the other half.
    points: points of each half.
  """

  forward: Divergence
  reverse: Divergence
  floor: Divergence
  points: int


def knn_kl(
    x: np.ndarray, y: np.ndarray, k: int = 1, seed: int = 0
) -> Divergence:
  """KL(X || Y) by distances to the k-th nearest neighbours.

    (a / n) sum_i log(s_k(x_i) / r_k(x_i)) + log(m / (n - 1))

  in a dimensions, where r_k(x_i) is the distance from x_i to its k-th nearest
  of the other x, and s_k(x_i) to its k-th nearest y; in float64.

  Args:
    x: float [n, a], n above k.
    y: float [m, a], m no less than k.
    k: number of the neighbour.
    seed: seed of the bootstrap.

  Raises:
    UserError: too few points, or a distance of 0, for which KL is not defined.
  """
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if len(x) <= k or len(y) < k:
    raise UserError(
        f'{len(x)} and {len(y)} embeddings of queries are too few for the'
        f' nearest neighbour number {k}: expected more than {k} of each.'
    )
  own, other = _distances(x, x, k, True), _distances(x, y, k, False)
  for name, found in (('one tower', own), ('both towers', other)):
    if equal := np.count_nonzero(found == 0):
      raise UserError(
          f'{equal:,} of {len(x):,} queries share an embedding of {name} with'
          ' another query, so the divergence is infinite. Are the towers equal'
          ' and fed the same queries, or has one collapsed? Leave out queries'
          ' of equal tokens.'
      )
  terms = x.shape[1] * np.log(other / own) + np.log(len(y) / (len(x) - 1))
  rng = np.random.default_rng(seed)
  means = [
      terms[rng.integers(len(terms), size=len(terms))].mean()
      for _ in range(_DRAWS)
  ]
  low, high = np.quantile(means, [_TAIL, 1 - _TAIL])
  return Divergence(float(terms.mean()), float(low), float(high))


def alignment(
    passage_tower: np.ndarray, query_tower: np.ndarray, k: int = 1,
    seed: int = 0,
) -> Alignment:
  """Compares two towers' embeddings of the same n different queries.

  Args:
    passage_tower: float [n, a], embeddings by the passage tower.
    query_tower: float [n, a], embeddings by the query tower.
    k: number of the neighbour.
    seed: seed of the halves and of the bootstrap.
  """
  order = np.random.default_rng(seed).permutation(len(passage_tower))
  half = len(order) // 2
  one, other = order[:half], order[half : 2 * half]
  x, y = passage_tower[one], query_tower[other]
  return Alignment(
      knn_kl(x, y, k, seed),
      knn_kl(y, x, k, seed),
      knn_kl(x, passage_tower[other], k, seed),
      half,
  )


def effective_rank(x: np.ndarray) -> float:
  """(tr C)^2 / tr C^2 of the second moments C of float [n, a]; 1 to a."""
  x = np.asarray(x, np.float64)
  moments = x.T @ x
  return float(np.trace(moments) ** 2 / np.sum(moments**2))


def _distances(
    x: np.ndarray, y: np.ndarray, k: int, is_same: bool
) -> np.ndarray:
  """From each x to its k-th nearest y, other than itself if `is_same`."""
  squares = np.sum(y**2, axis=1)
  out = np.empty(len(x))
  for start in range(0, len(x), _BLOCK):
    block = x[start : start + _BLOCK]
    rows = np.arange(len(block))
    distances = squares[None] - 2 * block @ y.T
    if is_same:
      distances[rows, start + rows] = np.inf
    # Products choose the neighbour only: those of near points cancel.
    nearest = np.argpartition(distances, k - 1, axis=1)[:, k - 1]
    out[start : start + _BLOCK] = np.linalg.norm(block - y[nearest], axis=1)
  return out
