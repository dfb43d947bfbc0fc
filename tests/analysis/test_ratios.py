"""Ratios of similarities, against tables of all pairs."""

import numpy as np
import pytest
import toy_set

from dualenc_jax.evaluation.analysis.vectors import similarity_ratios


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
