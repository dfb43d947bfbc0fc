"""Telling towers apart: clouds that coincide, clouds that do not, groups."""

import numpy as np
import pytest
import toy_set

from dualenc_jax.evaluation.analysis.embedding_space import (
  groups_of,
  separability,
)

# A step along one dimension.
SHIFT = 2.0 * (np.arange(toy_set.DIM) == 3)


def test_coinciding_clouds_are_a_guess_and_shifted_ones_are_not():
  queries = toy_set.unit_vectors(400, seed=1)
  passages = toy_set.unit_vectors(400, seed=2)
  alone = np.arange(800)
  assert separability(queries, passages, alone) == pytest.approx(0.5, abs=0.06)
  assert separability(queries, passages + SHIFT, alone) == 1.0
  half_way = separability(queries, passages + 0.15 * SHIFT, alone)
  assert 0.7 < half_way < 0.95
  # The scale of a dimension does not matter.
  scales = np.geomspace(1e-3, 1e3, toy_set.DIM)
  scaled = separability(
      queries * scales, (passages + 0.15 * SHIFT) * scales, alone
  )
  assert scaled == pytest.approx(half_way, abs=0.01)


def prints(*values):
  return np.array(values, np.uint64)


def partition(groups):
  """Sets of the positions that are in one group."""
  return {
      frozenset(np.flatnonzero(groups == group).tolist())
      for group in groups.tolist()
  }


def test_groups_are_what_hangs_together():
  groups = groups_of(
      prints(1, 2, 3, 4, 4, 8, 9),
      prints(17, 12, 11, 12, 3, 99),
      [
          # Shares 17, by which it hangs together with the third.
          prints(13, 17),
          # None of its passages is in the sample.
          prints(50),
          prints(17, 11),
          # Equal queries hang together, and so do equal passages.
          prints(),
          prints(12),
          # A passage that is not in the sample, of both.
          prints(70),
          prints(70),
      ],
  )
  # Query 3 and passage 3, position 11, have one text.
  assert partition(groups) == {
      frozenset({0, 2, 7, 9, 11}), frozenset({1}), frozenset({3, 4, 8, 10}),
      frozenset({5, 6}), frozenset({12}),
  }
  assert groups.min() == 0


def test_shared_passages_and_equal_queries_give_nothing_away():
  # Ten queries are near the topic of their passage; each random passage has a
  # topic of its own. All topics are alike to both towers.
  rng = np.random.default_rng(10)
  size, fan = 300, 10
  topic_of = np.repeat(np.arange(size // fan), fan)
  found, leaking = [], []
  for seed in range(3):
    topics = rng.normal(size=(size, 64))
    queries = topics[topic_of] + 0.3 * rng.normal(size=(size, 64))
    passages = topics + 0.3 * rng.normal(size=(size, 64))
    of_passages = np.arange(size, dtype=np.uint64) + np.uint64(10**6)
    relevant = [of_passages[[topic]] for topic in topic_of]
    # Where the first query of a topic alone is judged, the others equal it.
    few = [prints() if i % fan else own for i, own in enumerate(relevant)]
    for texts, judged in (
        (np.arange(size, dtype=np.uint64), relevant),
        (topic_of.astype(np.uint64), few),
    ):
      groups = groups_of(texts, of_passages, judged)
      found.append(separability(queries, passages, groups, seed))
    leaking.append(separability(queries, passages, np.arange(2 * size), seed))
  assert np.mean(found) == pytest.approx(0.5, abs=0.05)
  assert np.mean(leaking) > 0.65


def test_one_large_group_is_measured_until_too_little_is_left():
  queries = toy_set.unit_vectors(200, seed=1)
  passages = toy_set.unit_vectors(200, seed=2)
  groups = np.arange(400)
  # Queries alone: the towers are not even in any fold.
  groups[:100] = 0
  assert separability(queries, passages + SHIFT, groups) == 1.0
  groups[100] = 0
  assert separability(queries, passages + SHIFT, groups) is None
