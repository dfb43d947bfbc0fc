"""Uniformity and the like, against double loops in float64."""

import itertools
import math

import numpy as np
import pytest
import toy_set

from dualenc_jax.evaluation.analysis import geometry
from dualenc_jax.evaluation.analysis.geometry import similarity_ratios


@pytest.mark.parametrize('block', [7, 1024])
def test_uniformity_is_the_log_of_the_mean_potential(block):
  vectors = toy_set.unit_vectors(23)
  potentials = [
      math.exp(-2 * math.dist(x, y) ** 2)
      for x, y in itertools.combinations(vectors.tolist(), 2)
  ]
  expected = math.log(math.fsum(potentials) / len(potentials))
  found = geometry.uniformity(vectors, block)
  assert found == pytest.approx(expected, rel=1e-12)
  one_point = np.repeat(vectors[:1], 20, axis=0)
  assert geometry.uniformity(one_point, block) == pytest.approx(0, abs=1e-12)
  assert geometry.uniformity(np.eye(20), block) == pytest.approx(-4)


def test_ratios_of_tiny_denominators_are_left_out():
  # Passage 0 is orthogonal to all; it is p_j of about a third of the draws.
  queries = np.array([[1.0, 0, 0], [0.6, 0.8, 0], [0, 1.0, 0]])
  passages = np.array([[0, 0, 1.0], [0.6, 0.8, 0], [0.8, 0.6, 0]])
  ratios = similarity_ratios(queries, passages, draws=6000)
  assert len(ratios) == pytest.approx(4000, rel=0.05)
  known = {
      round(queries[i] @ queries[j] / (queries[i] @ passages[j]), 6)
      for i in range(3)
      for j in (1, 2)
      if i != j
  }
  assert {*ratios.round(6)} == known
  assert not len(similarity_ratios(queries, np.eye(3)[[2, 2, 2]], draws=10))


def test_draws_cover_all_pairs_evenly_and_depend_on_the_seed():
  queries = toy_set.unit_vectors(6)
  passages = toy_set.unit_vectors(6, seed=1)
  table = (queries @ queries.T / (queries @ passages.T)).astype(np.float64)
  expected = table[~np.eye(6, dtype=bool)]
  ratios = similarity_ratios(queries, passages, draws=30_000)
  nearest = np.abs(ratios[:, None] - expected).argmin(axis=1)
  np.testing.assert_allclose(ratios, expected[nearest], rtol=1e-4)
  counts = np.bincount(nearest, minlength=30)
  np.testing.assert_allclose(counts, 1000, rtol=0.15)
  other = similarity_ratios(queries, passages, draws=30_000, seed=1)
  assert (other != ratios).any()


def test_signs_by_counting():
  rows = [[1, -1, 2, 0], [2, -1, -1, 0], [1, 3, 1, 0], [1, 1, 1, 0]]
  # Shares of signs at least 0: 1, 1/2, 3/4, 1.
  expected = 4 / 4 * (1 / 4 + 3 / 16)
  found = geometry.dimensional_efficiency(np.array(rows))
  assert found == pytest.approx(expected)
