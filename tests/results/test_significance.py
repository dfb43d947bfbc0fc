"""The tests against SciPy's, by hand, and where there is nothing to test."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.stats

from dualenc_jax.evaluation.results.significance import (
  holm,
  randomization_test,
)

STEPS = np.linspace(0, 0.9, 10)


def samples(queries, seed=0):
  """Reciprocal ranks of two systems, one a little better; many are equal."""
  rng = np.random.default_rng(seed)
  one = 1 / rng.integers(1, 20, queries)
  changed = one + rng.normal(0.02, 0.2, queries)
  other = np.where(rng.random(queries) < 0.4, one, changed)
  return one, other


@pytest.mark.parametrize('queries', [2, 7, 10])
def test_few_queries_are_tested_exactly(queries):
  one, other = samples(queries, seed=queries)
  differences = other - one
  ways = np.array([*itertools.product([-1, 1], repeat=queries)])
  sums = np.abs(ways @ differences)
  expected = np.mean(sums >= abs(differences.sum()) - 1e-12)
  assert randomization_test(one, other) == expected


def test_only_queries_that_differ_count_as_few():
  """2 better, 0 worse and 1,000 equal: a quarter of the flips, both signs."""
  one = np.linspace(0, 1, 1002)
  other = one.copy()
  other[[3, 500]] += 0.25
  assert randomization_test(one, other) == 2 / 4


def test_many_queries_are_near_scipys_random_test():
  one, other = samples(150)
  expected = scipy.stats.permutation_test(
      (one, other),
      lambda a, b, axis: np.mean(b - a, axis=axis),
      permutation_type='samples', n_resamples=40_000, vectorized=True,
      batch=2_000,
      rng=np.random.default_rng(1),
  ).pvalue
  got = randomization_test(one, other, permutations=40_000)
  # Five standard deviations of the difference of two such estimates.
  bound = 5 * (2 * max(expected, 1e-4) / 40_000) ** 0.5
  assert abs(got - expected) < bound


def test_random_ways_are_counted_with_the_observed_one():
  assert randomization_test(np.zeros(200), np.ones(200), 999) == 1 / 1000
  one, other = samples(100)
  found = [randomization_test(one, other, 500, seed) for seed in (3, 3, 0, 1)]
  assert found[0] == found[1]
  assert found[0] * 501 == pytest.approx(round(found[0] * 501))
  assert len({*found}) > 1


@pytest.mark.parametrize(
    'one, other, p',
    [
        ([0.5, 0.25, 1.0], [0.5, 0.25, 1.0], 1),
        ([0.0] * 100, [0.0] * 100, 1),
        ([0.5], [1.0], 1),
        # 0.1 more each: in floating point these differ by some 1e-17.
        (STEPS, STEPS + 0.1, 2 / 1024),
    ],
)
def test_without_variance_or_evidence(one, other, p):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert randomization_test(np.array(one), np.array(other)) == p


@pytest.mark.parametrize(
    'p_values, expected',
    [
        ([], []),
        ([0.04], [0.04]),
        # The textbook case: 4 * 0.01, 3 * 0.02 = 0.06, then never smaller.
        ([0.03, 0.01, 0.04, 0.02], [0.06, 0.04, 0.06, 0.06]),
        ([0.5, 0.9, 0.001], [1.0, 1.0, 0.003]),
    ],
)
def test_holms_correction(p_values, expected):
  assert holm(p_values) == pytest.approx(expected)
