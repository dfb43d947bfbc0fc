"""Significance tests of the difference of two systems on the same queries.

Smucker, Allan and Carterette (CIKM 2007) compare these tests for retrieval.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Up to so many queries that differ all sign patterns are tried.
_EXACT = 16
_BLOCK = 2**21  # Signs drawn at a time.
# Digits of shares: sums of the same terms in another order differ by less.
_DIGITS = 12


def randomization_test(
    baseline: np.ndarray, values: np.ndarray, permutations: int = 10_000,
    seed: int = 0,
) -> float:
  """Two-sided p of the paired randomization test (Fisher's) of values [Q].

  Under the null hypothesis either system could have had either value of a
  query. p is the share of the ways to swap them in which the means differ by
  at least as much as they do. Where at most 16 queries differ it is exact, else
  (count + 1) / (permutations + 1) of random ways.
  """
  differences = values - baseline
  # To swap equal values changes nothing: the other ways are as likely without.
  differences = differences[differences != 0]
  n = len(differences)
  if n < 2:
    return 1.0
  import scipy.stats

  differences = differences / np.abs(differences).sum()
  rng = np.random.default_rng(seed)

  def total(signed: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(signed.sum(axis)).round(_DIGITS)

  def swapped(size: tuple[int, ...]) -> np.ndarray:
    return np.where(rng.integers(0, 2, size, bool), differences, -differences)

  how: dict[str, Any] = {'vectorized': True, 'alternative': 'greater'}
  if n <= _EXACT:
    result = scipy.stats.permutation_test(
        [differences], total, permutation_type='samples', n_resamples=2**n,
        **how,
    )
  else:
    # permutation_test draws these signs thirty times as slowly.
    result = scipy.stats.monte_carlo_test(
        differences, swapped, total, n_resamples=permutations,
        batch=max(_BLOCK // n, 1), **how,
    )
  return float(result.pvalue)


class Paired(NamedTuple):
  """Means of two systems on the queries that count for both, and p."""

  before: float
  after: float
  p: float
  queries: int

  def describe(self, metric: str) -> str:
    """'MRR 0.1 -> 0.2 (p 0.01, paired randomization test)'."""
    return (
        f'{metric} {self.before:.4f} -> {self.after:.4f} (p {self.p:.4f},'
        ' paired randomization test)'
    )


def paired(before: np.ndarray, after: np.ndarray) -> Paired:
  """Compares values [Q], NaN where a query does not count."""
  counted = ~np.isnan(before + after)
  one, other = before[counted], after[counted]
  p = randomization_test(one, other)
  return Paired(float(one.mean()), float(other.mean()), p, len(one))


def holm(p_values: Sequence[float]) -> list[float]:
  """p values corrected for being several, by Holm's step-down method.

  Reject those of at most alpha, and the chance that any of the rejections is
  wrong is at most alpha.
  """
  corrected = [0.0] * len(p_values)
  largest = 0.0
  for place, (p, i) in enumerate(sorted(zip(p_values, range(len(p_values))))):
    largest = max(largest, min((len(p_values) - place) * p, 1.0))
    corrected[i] = largest
  return corrected
