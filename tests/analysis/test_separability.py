"""Telling towers apart: clouds that coincide, clouds that do not, groups."""

import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis.separability import groups_of
from dualenc_jax.analysis.separability import separability


def test_coinciding_clouds_are_a_guess_and_shifted_ones_are_not():
  queries = toy_set.unit_vectors(400, seed=1)
  passages = toy_set.unit_vectors(400, seed=2)
  alone = np.arange(800)
  assert separability(queries, passages, alone) == pytest.approx(0.5, abs=0.06)
  shift = np.zeros(toy_set.DIM)
  shift[3] = 2
  assert separability(queries, passages + shift, alone) == 1.0
  half_way = separability(queries, passages + 0.15 * shift, alone)
  assert 0.7 < half_way < 0.95
  # The scale of a dimension does not matter.
  scales = np.geomspace(1e-3, 1e3, toy_set.DIM)
  scaled = separability(
      queries * scales, (passages + 0.15 * shift) * scales, alone
  )
  assert scaled == pytest.approx(half_way, abs=0.01)


def test_it_is_the_same_twice_and_the_seed_deals_the_folds():
  queries = toy_set.unit_vectors(60, seed=1)
  passages = toy_set.unit_vectors(60, seed=2)
  first = separability(queries, passages, np.arange(120))
  assert separability(queries, passages, np.arange(120)) == first
  others = {
      separability(queries, passages, np.arange(120), seed) for seed in range(5)
  }
  assert len(others) > 1


def test_a_group_is_in_one_fold():
  # Every text is twice in its tower. Apart, the twin in another fold gives the
  # tower away; in one group it cannot.
  texts = toy_set.unit_vectors(120, seed=3, dim=200)
  queries, passages = np.repeat(texts[:60], 2, 0), np.repeat(texts[60:], 2, 0)
  leaking = separability(queries, passages, np.arange(240))
  twins = np.repeat(np.arange(120), 2)
  assert leaking > 0.75
  assert separability(queries, passages, twins) < 0.6


def test_groups_hold_a_query_and_its_passages():
  gold = [[3, 7], [], [7, 1]]
  groups = groups_of(gold, np.array([7, 2, 1]))
  assert groups.tolist()[:3] == [0, 1, 2]
  # Passage 7 stays with the first of its two queries; nobody has 2.
  assert groups[3] == 0 and groups[5] == 2
  assert groups[4] not in {0, 1, 2}
