"""Alignment and the like, against double loops in float64."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import toy_set

from dualenc_jax.analysis import geometry
from dualenc_jax.analysis.geometry import similarity_ratios


def test_alignment_is_the_mean_distance_of_pairs():
  queries = toy_set.unit_vectors(25, seed=1)
  passages = toy_set.unit_vectors(25, seed=2)
  pairs = zip(queries.tolist(), passages.tolist())
  distances = [math.dist(*pair) for pair in pairs]
  for alpha in (1.0, 2.0):
    expected = math.fsum(d**alpha for d in distances) / 25
    found = geometry.alignment(queries, passages, alpha)
    assert found == pytest.approx(expected, rel=1e-12)
  assert geometry.alignment(queries, -queries) == pytest.approx(4)


@pytest.mark.parametrize(('t', 'block'), [(0.5, 7), (2.0, 1024)])
def test_uniformity_is_the_log_of_the_mean_potential(t, block):
  vectors = toy_set.unit_vectors(23)
  potentials = [
      math.exp(-t * math.dist(x, y) ** 2)
      for x, y in itertools.combinations(vectors.tolist(), 2)
  ]
  expected = math.log(math.fsum(potentials) / len(potentials))
  found = geometry.uniformity(vectors, t, block)
  assert found == pytest.approx(expected, rel=1e-12)
  one_point = np.repeat(vectors[:1], 20, axis=0)
  assert geometry.uniformity(one_point, t, block) == pytest.approx(0, abs=1e-12)
  assert geometry.uniformity(np.eye(20), t, block) == pytest.approx(-2 * t)


@pytest.mark.parametrize('block', [7, 1024])
def test_near_duplicates_and_repeats(block):
  vectors = toy_set.unit_vectors(23, seed=3)
  vectors[17] = vectors[4]
  # Angles of 1e-4 and 1e-2 are cosines of 1 - 5e-9 and 1 - 5e-5.
  for row, angle in ((20, 1e-4), (21, 1e-2)):
    nudged = vectors[9] + angle * vectors[2]
    vectors[row] = nudged / np.linalg.norm(nudged)
  assert geometry.near_duplicates(vectors, block) == 4 / 23
  assert geometry.repeats(np.array([7, 7, 7, 8, 9])) == pytest.approx(2 / 5)


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
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(400, 12)) + np.linspace(-1, 1, 12)
  vectors[:, 5] = vectors[:, 4]
  vectors[:, 7] = 0
  vectors[100:150] = vectors[:50]
  bits = vectors >= 0
  ones = bits.mean(axis=0)
  entropies = []
  for part in (bits[:, :8], bits[:, 8:]):
    rows = [tuple(row) for row in part]
    counts = [rows.count(row) for row in {*rows}]
    entropies.append(scipy.stats.entropy(counts, base=2))
  varying = [d for d in range(12) if 0 < ones[d] < 1]
  assert 7 not in varying
  correlations = [
      abs(scipy.stats.pearsonr(bits[:, a], bits[:, b])[0])
      for a, b in itertools.combinations(varying, 2)
  ]
  assert geometry.bit_numbers(vectors.astype(np.float32)) == pytest.approx({
      'dimensional_efficiency': 4 / 12 * sum(p * (1 - p) for p in ones),
      'bit_entropy': -sum(
          p * math.log2(p) for one in ones for p in (one, 1 - one) if p
      ) / 12,
      'byte_entropy': np.mean(entropies) / 8,
      'distinct_codes': len({tuple(row) for row in bits}) / 400,
      'bit_correlation': np.mean(correlations),
  })
