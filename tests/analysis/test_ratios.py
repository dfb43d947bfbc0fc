"""Ratios of similarities: cases whose ratios are known, and a double loop."""

import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis.geometry import DRAWS, similarity_ratios


def test_coinciding_towers_have_ratio_one():
  queries = toy_set.unit_vectors(12)
  ratios = similarity_ratios(queries, queries)
  assert len(ratios.values) == DRAWS and ratios.left_out == 0
  np.testing.assert_allclose(ratios.values, 1)
  assert ratios.share_within(0.9, 1.1) == 1
  assert similarity_ratios(queries, -queries).median == pytest.approx(-1)


def test_a_query_is_never_drawn_with_itself():
  # Orthonormal queries: only i = j would give a ratio that is not 0.
  same = np.full((5, 5), 5**-0.5)
  assert not similarity_ratios(np.eye(5), same).values.any()


def test_tiny_denominators_are_left_out_and_counted():
  # Passage 0 is orthogonal to all; it is p_j of about a third of the draws.
  queries = np.array([[1.0, 0, 0], [0.6, 0.8, 0], [0, 1.0, 0]])
  passages = np.array([[0, 0, 1.0], [0.6, 0.8, 0], [0.8, 0.6, 0]])
  ratios = similarity_ratios(queries, passages, draws=6000)
  assert len(ratios.values) + ratios.left_out == 6000
  assert ratios.left_out == pytest.approx(2000, rel=0.1)
  known = {
      round(queries[i] @ queries[j] / (queries[i] @ passages[j]), 6)
      for i in range(3)
      for j in (1, 2)
      if i != j
  }
  assert set(ratios.values.round(6)) == known
  nothing = similarity_ratios(queries, np.eye(3)[[2, 2, 2]], draws=10)
  assert nothing.left_out == 10 and np.isnan(nothing.median)


def test_draws_cover_all_pairs_evenly_and_depend_on_the_seed():
  queries = toy_set.unit_vectors(6)
  passages = toy_set.unit_vectors(6, seed=1)
  table = (queries @ queries.T / (queries @ passages.T)).astype(np.float64)
  expected = table[~np.eye(6, dtype=bool)]
  ratios = similarity_ratios(queries, passages, draws=30_000)
  nearest = np.abs(ratios.values[:, None] - expected).argmin(axis=1)
  np.testing.assert_allclose(ratios.values, expected[nearest], rtol=1e-4)
  counts = np.bincount(nearest, minlength=30)
  np.testing.assert_allclose(counts, 1000, rtol=0.15)
  again = similarity_ratios(queries, passages, draws=30_000)
  np.testing.assert_array_equal(again.values, ratios.values)
  other = similarity_ratios(queries, passages, draws=30_000, seed=1)
  assert (other.values != ratios.values).any()
