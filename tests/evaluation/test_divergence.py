"""The nearest-neighbour divergence, against trees, loops and known values."""

import math

import numpy as np
import pytest
from scipy.spatial import cKDTree

from dualenc_jax.evaluation import divergence
from dualenc_jax.utils.errors import UserError


def points(count, dim, seed=0, shift=0.0):
  return np.random.default_rng(seed).normal(shift, size=(count, dim))


@pytest.mark.parametrize('n, m, dim', [(40, 60, 3), (1500, 1100, 8)])
def test_against_a_tree(n, m, dim):
  x, y = points(n, dim), points(m, dim, 1, 0.5)
  own = cKDTree(x).query(x, 2)[0][:, -1]
  other = cKDTree(y).query(x)[0]
  expected = dim * np.mean(np.log(other / own)) + math.log(m / (n - 1))
  assert divergence.knn_kl(x, y) == pytest.approx(expected, rel=1e-12)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_towers_that_match_and_that_do_not():
  # Cones of ten dimensions in 64.
  spread = points(2000, 10) @ points(10, 64, 1)
  teacher, far = unit(spread + 5), unit(spread[::-1] - 5)
  near = unit(teacher + 1e-3 * points(2000, 64, 2))
  centre = unit(teacher.mean(axis=0) + 1e-3 * points(2000, 64, 3))
  found = divergence.alignment(teacher, near)
  assert found.points == 1000
  # Of one distribution, whatever was paired.
  assert abs(found.forward) < 3 and abs(found.floor) < 3
  assert divergence.alignment(teacher, far).forward > 20
  # A collapsed tower is told by the other direction.
  collapsed = divergence.alignment(teacher, centre)
  assert collapsed.reverse > 3 * collapsed.forward > 0


def test_what_has_no_divergence():
  x = points(50, 4)
  with pytest.raises(UserError, match='50 of 50 .* of both towers'):
    divergence.knn_kl(x, x)
  with pytest.raises(UserError, match='2 of 51 .* of one tower'):
    divergence.knn_kl(np.concatenate([x, x[:1]]), points(50, 4, 1))
  with pytest.raises(UserError, match='1 and 9 .* at least 2 and 1'):
    divergence.knn_kl(points(1, 2), points(9, 2, 1))
