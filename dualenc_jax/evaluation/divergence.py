"""Divergence of two towers' embeddings of queries: a nearest-neighbour KL.

DAFT (Leonhardt et al. 2022) aligns a query tower to a passage tower until the
divergence of their embeddings of queries is low. The estimator is that of Wang,
Kulkarni and Verdu (2009).
"""

from typing import NamedTuple

import numpy as np

from dualenc_jax.utils.errors import UserError

_BLOCK = 1024


class Alignment(NamedTuple):
  """The divergence of a query tower's embeddings Y from a passage tower's X.

  X and Y are of disjoint halves of the queries, as the estimator needs
  independent samples. KL scales with the dimension, so a threshold is best
  taken between `floor` and the first `forward`.

  Attributes:
    forward: KL(X || Y), DAFT's, in nats; an estimate, which may be below 0.
    reverse: KL(Y || X), which is high for a collapsed query tower.
    floor: KL of X from the passage tower's embeddings of the other half.
    points: points of each half.
  """

  forward: float
  reverse: float
  floor: float
  points: int


def knn_kl(x: np.ndarray, y: np.ndarray) -> float:
  """Estimates KL(X || Y) of points [n, a] and [m, a], in nats.

    (a / n) sum_i log(s(x_i) / r(x_i)) + log(m / (n - 1))

  in a dimensions, where r(x_i) is the distance from x_i to the nearest other x,
  and s(x_i) to the nearest y; in float64.

  Raises:
    UserError: too few points, or a distance of 0, for which KL is not defined.
  """
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if len(x) < 2 or not len(y):
    raise UserError(
        f'{len(x)} and {len(y)} embeddings of queries are too few for a'
        ' nearest neighbour: expected at least 2 and 1.'
    )
  own, other = _distances(x, x, True), _distances(x, y, False)
  for name, distances in (('one tower', own), ('both towers', other)):
    if equal := np.count_nonzero(distances == 0):
      raise UserError(
          f'{equal:,} of {len(x):,} queries share an embedding of {name} with'
          ' another query, so the divergence is infinite. Are the towers equal,'
          ' or has one collapsed?'
      )
  ratios = np.log(other / own)
  return float(x.shape[1] * ratios.mean() + np.log(len(y) / (len(x) - 1)))


def alignment(
    passage_tower: np.ndarray, query_tower: np.ndarray, seed: int = 0
) -> Alignment:
  """Compares two towers' embeddings [n, a] of the same n different queries."""
  order = np.random.default_rng(seed).permutation(len(passage_tower))
  half = len(order) // 2
  one, other = order[:half], order[half : 2 * half]
  x, y = passage_tower[one], query_tower[other]
  return Alignment(
      knn_kl(x, y), knn_kl(y, x), knn_kl(x, passage_tower[other]), half
  )


def effective_rank(x: np.ndarray) -> float:
  """(tr C)^2 / tr C^2 of the second moments C of float [n, a]; 1 to a."""
  x = np.asarray(x, np.float64)
  moments = x.T @ x
  return float(np.trace(moments) ** 2 / np.sum(moments**2))


def _distances(x: np.ndarray, y: np.ndarray, is_same: bool) -> np.ndarray:
  """From each x to its nearest y, other than itself if `is_same`."""
  squares = np.sum(y**2, axis=1)
  out = np.empty(len(x))
  for start in range(0, len(x), _BLOCK):
    block = x[start : start + _BLOCK]
    rows = np.arange(len(block))
    distances = squares[None] - 2 * block @ y.T
    if is_same:
      distances[rows, start + rows] = np.inf
    # Products only choose the neighbour, as those of near points cancel.
    nearest = y[distances.argmin(axis=1)]
    out[start : start + _BLOCK] = np.linalg.norm(block - nearest, axis=1)
  return out
