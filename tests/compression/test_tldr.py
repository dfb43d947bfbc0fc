"""TLDR: its loss in NumPy, its neighbours, and that it keeps them."""

import compression_vectors
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import linear, tldr


def exact_neighbours(rows, count):
  scores = rows.astype(np.float64) @ rows.T
  np.fill_diagonal(scores, -np.inf)
  return np.argsort(-scores, axis=1, kind='stable')[:, :count]


def test_a_row_is_no_neighbour_of_its_own_even_if_it_is_far_down():
  """Of different lengths, inner products do not put a row first itself."""
  rows = compression_vectors.embeddings(200, 6).copy()
  rows *= np.random.default_rng(0).uniform(0.1, 3, (200, 1)).astype(np.float32)
  rows[50:60] = rows[50]
  found = tldr.nearest_neighbours(rows, 3)
  assert (found != np.arange(200)[:, None]).all()
  alike = np.setdiff1d(np.arange(200), np.arange(50, 60))
  expected = np.take_along_axis(
      rows @ rows.T, exact_neighbours(rows, 3), axis=1
  )
  scores = np.take_along_axis(rows @ rows.T, found, axis=1)
  np.testing.assert_allclose(scores[alike], expected[alike], atol=1e-5)


def test_loss():
  rng = np.random.default_rng(0)
  weights = tldr._weights(6, 3, 16, 0)
  weights['scale'] = rng.uniform(0.5, 2, 16).astype(np.float32)
  weights['shift'] = rng.standard_normal(16).astype(np.float32)
  one, two = rng.standard_normal((2, 32, 6)).astype(np.float32)

  def normalised(x):
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)

  def project(x):
    w = {key: value.astype(np.float64) for key, value in weights.items()}
    hidden = normalised(x @ w['encoder'] @ w['first'])
    hidden = np.maximum(hidden * w['scale'] + w['shift'], 0)
    return normalised(hidden @ w['second'])

  expected = 0
  correlations = project(one).T @ project(two) / 32
  for i in range(16):
    for j in range(16):
      c = correlations[i, j]
      expected += (c - 1) ** 2 if i == j else 3.9e-3 * c**2
  found = tldr._loss(weights, one, two)
  assert float(found) == pytest.approx(expected / 32, rel=1e-5)


def structured(count, seed=0):
  """Few directions tell neighbours, and more of the variance is noise."""
  rng = np.random.default_rng(seed)
  groups = rng.standard_normal((60, 4))
  inner = groups[rng.integers(60, size=count)]
  inner = inner + 0.15 * rng.standard_normal((count, 4))
  rows = np.concatenate([inner, 0.3 * rng.standard_normal((count, 28))], axis=1)
  rows = rows @ linear.random_rotation(32, 1).astype(np.float64)
  return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def recall(rows, matrix):
  small = rows @ matrix.T
  pairs = zip(exact_neighbours(rows, 10), exact_neighbours(small, 10))
  return np.mean([len(set(a) & set(b)) / 10 for a, b in pairs])


def test_loss_falls_and_neighbours_are_kept():
  rows = structured(1000)
  twins = tldr.nearest_neighbours(rows, 5)
  np.testing.assert_array_equal(twins, exact_neighbours(rows, 5))
  matrix, losses = tldr.train(
      rows, twins, 4, 0, 50, batch=250, hidden=64, learning_rate=2.0
  )
  assert matrix.shape == (4, 32) and matrix.dtype == np.float32
  assert losses.shape == (50,) and losses[-1] < 0.3 * losses[0]
  by_chance = [recall(rows, linear.random_rotation(32, s)[:4]) for s in (5, 6)]
  assert recall(rows, matrix) > 3 * max(by_chance)
