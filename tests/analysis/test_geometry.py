"""Alignment and the like, against double loops in float64."""

import itertools
import math

import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis import geometry


@pytest.fixture(params=[7, 1024])
def block(request, monkeypatch):
  monkeypatch.setattr(geometry, '_BLOCK', request.param)


@pytest.mark.parametrize('alpha', [1.0, 2.0, 3.0])
def test_alignment_is_the_mean_distance_of_pairs(alpha):
  queries = toy_set.unit_vectors(25, seed=1)
  passages = toy_set.unit_vectors(25, seed=2)
  distances = [
      math.dist(q, p) ** alpha
      for q, p in zip(queries.tolist(), passages.tolist())
  ]
  expected = math.fsum(distances) / 25
  found = geometry.alignment(queries, passages, alpha)
  assert found == pytest.approx(expected, rel=1e-12)
  assert geometry.alignment(queries, queries) == 0


def test_alignment_of_opposite_points_is_four():
  queries = np.eye(3)
  assert geometry.alignment(queries, -queries) == pytest.approx(4)


@pytest.mark.parametrize('t', [0.5, 2.0])
@pytest.mark.usefixtures('block')
def test_uniformity_is_the_log_of_the_mean_potential(t):
  vectors = toy_set.unit_vectors(23)
  potentials = [
      math.exp(-t * math.dist(x, y) ** 2)
      for x, y in itertools.combinations(vectors.tolist(), 2)
  ]
  expected = math.log(math.fsum(potentials) / len(potentials))
  assert geometry.uniformity(vectors, t) == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures('block')
def test_uniformity_of_known_points():
  one_point = np.repeat(toy_set.unit_vectors(1), 20, axis=0)
  assert geometry.uniformity(one_point) == pytest.approx(0, abs=1e-12)
  assert geometry.uniformity(np.eye(20)) == pytest.approx(-4)
  two = np.array([[1.0, 0], [-1.0, 0]])
  assert geometry.uniformity(two) == pytest.approx(-8)


@pytest.mark.usefixtures('block')
def test_nearest_others_and_near_duplicates():
  vectors = toy_set.unit_vectors(23, seed=3)
  vectors[17] = vectors[4]
  nudged = vectors[9] + 1e-4 * vectors[2]
  vectors[20] = nudged / np.linalg.norm(nudged)
  cosines = vectors.astype(np.float64) @ vectors.T
  expected = [max(np.delete(row, i)) for i, row in enumerate(cosines)]
  np.testing.assert_allclose(
      geometry.nearest_cosines(vectors), expected, rtol=1e-12
  )
  # An angle of 1e-4 is a cosine of 1 - 5e-9.
  assert geometry.near_duplicates(vectors) == 4 / 23


def test_repeats_count_all_but_the_first():
  assert geometry.repeats(np.array([7, 7, 7, 8, 9])) == pytest.approx(2 / 5)
  assert geometry.repeats(np.arange(4)) == 0


def test_unit_rows_of_halves():
  vectors = (5 * toy_set.unit_vectors(6)).astype(np.float16)
  unit = geometry.unit_rows(vectors)
  assert unit.dtype == np.float32
  np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
  np.testing.assert_allclose(unit, vectors / 5, atol=2e-3)
