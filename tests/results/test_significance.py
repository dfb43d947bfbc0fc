"""The tests against SciPy's, by hand, and where there is nothing to test."""

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.stats

from dualenc_jax.results import significance


def samples(queries, seed=0, shift=0.02):
  """Reciprocal ranks of two systems, one a little better; many are equal."""
  rng = np.random.default_rng(seed)
  one = 1 / rng.integers(1, 20, queries)
  changed = one + rng.normal(shift, 0.2, queries)
  other = np.where(rng.random(queries) < 0.4, one, changed)
  return one, other


@pytest.mark.parametrize('queries', [2, 5, 300])
def test_the_t_test_is_scipys(queries):
  one, other = samples(queries, seed=queries)
  expected = scipy.stats.ttest_1samp(other - one, 0).pvalue
  got = significance.paired_t_test(one, other)
  np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_the_t_test_by_hand():
  # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 2 sqrt(3) with 2
  # degrees of freedom, whose p is 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12 / 14).
  p = significance.paired_t_test(np.zeros(3), np.array([1.0, 2.0, 3.0]))
  assert p == pytest.approx(1 - (12 / 14) ** 0.5)


@pytest.mark.parametrize('queries', [2, 7, 10])
def test_few_queries_are_tested_exactly_as_by_scipy(queries):
  one, other = samples(queries, seed=queries)
  expected = scipy.stats.permutation_test(
      (one, other),
      lambda a, b: np.mean(b - a),
      permutation_type='samples',
      n_resamples=np.inf,
  ).pvalue
  got = significance.randomization_test(one, other)
  np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_only_queries_that_differ_count_as_few():
  """2 better, 0 worse and 1,000 equal: a quarter of the flips, both signs."""
  one = np.linspace(0, 1, 1002)
  other = one.copy()
  other[[3, 500]] += 0.25
  assert significance.randomization_test(one, other) == 2 / 4


def test_a_sign_test_by_hand():
  """Equal steps: 13 better and 3 worse are as likely as a coin says."""
  one = np.zeros(16)
  other = np.repeat([0.1, -0.1], [13, 3])
  heads = sum(
      1
      for flips in itertools.product([0, 1], repeat=16)
      if sum(flips) in (0, 1, 2, 3, 13, 14, 15, 16)
  )
  assert significance.randomization_test(one, other) == heads / 2**16


@pytest.mark.parametrize('shift', [0.0, 0.02, 0.1])
def test_many_queries_are_near_scipys_random_test(shift):
  one, other = samples(400, shift=shift)
  expected = scipy.stats.permutation_test(
      (one, other),
      lambda a, b, axis: np.mean(b - a, axis=axis),
      permutation_type='samples',
      n_resamples=40_000,
      vectorized=True,
      batch=2_000,
      rng=np.random.default_rng(1),
  ).pvalue
  got = significance.randomization_test(one, other, permutations=40_000)
  # Five standard deviations of the difference of two such estimates.
  bound = 5 * (2 * max(expected, 1e-4) / 40_000) ** 0.5
  assert abs(got - expected) < bound


def test_random_ways_are_counted_with_the_observed_one():
  one, other = np.zeros(200), np.ones(200)
  assert significance.randomization_test(one, other, 999) == 1 / 1000
  one, other = samples(100)
  first = significance.randomization_test(one, other, 500, seed=3)
  assert first == significance.randomization_test(one, other, 500, seed=3)
  assert (first * 501) == pytest.approx(round(first * 501))
  others = {
      significance.randomization_test(one, other, 500, seed=seed)
      for seed in range(4)
  }
  assert len(others) > 1


def test_both_signs_are_the_same_evidence():
  one, other = samples(300)
  for test in (
      significance.paired_t_test,
      significance.randomization_test,
  ):
    assert test(one, other) == pytest.approx(test(other, one), abs=1e-12)


@pytest.mark.parametrize(
    'one, other',
    [
        ([0.5, 0.25, 1.0], [0.5, 0.25, 1.0]),
        ([0.0] * 100, [0.0] * 100),
        ([0.5], [0.5]),
    ],
)
def test_without_evidence_p_is_1(one, other):
  one, other = np.array(one), np.array(other)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert significance.paired_t_test(one, other) == 1.0
    assert significance.randomization_test(one, other) == 1.0


def test_a_single_query_leaves_the_t_test_nothing_to_judge_by():
  one, other = np.array([0.5]), np.array([1.0])
  assert significance.paired_t_test(one, other) is None
  assert significance.randomization_test(one, other) == 1.0


def test_equal_differences_leave_the_t_test_nothing_to_judge_by():
  """0.1 more each: in floating point these differ by some 1e-17."""
  one = np.linspace(0, 0.9, 10)
  other = one + 0.1
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert significance.paired_t_test(one, other) is None
    assert significance.randomization_test(one, other) == 2 / 2**10


def test_many_queries_take_little_memory():
  one, other = samples(7_000)
  tracemalloc.start()
  significance.randomization_test(one, other, permutations=10_000)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  # All signs at once would be 42 MB as bytes and 336 MB as floats.
  assert peak < 60e6


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
  np.testing.assert_allclose(significance.holm(p_values), expected)


def test_a_test_that_does_not_apply_counts_in_holms_family():
  first, none, second = significance.holm([0.02, None, 0.01])
  # 3 * 0.01, then 2 * 0.02.
  assert (second, none) == (pytest.approx(0.03), None)
  assert first == pytest.approx(0.04)
