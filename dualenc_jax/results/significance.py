"""Whether the difference of two systems on the same queries may be chance.

Smucker, Allan and Carterette (CIKM 2007) compare these tests for retrieval.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Up to so many queries that differ all sign patterns are tried.
_EXACT = 16
_BLOCK = 2**22  # Signs drawn at a time.
# Sums of the same terms in another order differ by less than this share.
_ROUNDING = 1e-12


def paired_t_test(baseline: np.ndarray, values: np.ndarray) -> float | None:
  """Two-sided p of Student's paired t-test.

  Args:
    baseline: [Q] values of one system.
    values: [Q] values of the other for the same queries.

  Returns:
    p; 1 where no query differs. None, as the test does not apply, for a single
    query that does and where all differ by the same: then there is no variance
    to judge by.
  """
  differences = values - baseline
  largest = np.abs(differences).max()
  if not largest:
    return 1.0
  if len(differences) < 2 or np.ptp(differences) <= _ROUNDING * largest:
    return None
  # A fifth of what a command takes to start.
  import scipy.stats

  return float(scipy.stats.ttest_rel(values, baseline).pvalue)


def randomization_test(
    baseline: np.ndarray,
    values: np.ndarray,
    permutations: int = 10_000,
    seed: int = 0,
) -> float:
  """Two-sided p of the paired randomization test (Fisher's, of sign flips).

  Under the null hypothesis either system could have had either value of a
  query. p is the share of the ways to swap them in which the means differ by
  at least as much as they do. Where at most 16 queries differ it is exact, else
  (count + 1) / (permutations + 1) of random ways.

  Args:
    baseline: [Q] values of one system.
    values: [Q] values of the other for the same queries.
    permutations: random ways, at least 1.
    seed: of these.
  """
  differences = values - baseline
  # To flip a zero changes nothing: the other flips are as likely without it.
  differences = differences[differences != 0]
  n = len(differences)
  least = abs(differences.sum()) - _ROUNDING * np.abs(differences).sum()
  if n <= _EXACT:
    ways = np.arange(2**n)[:, None] >> np.arange(n) & 1
    return float(np.mean(_extreme(ways, differences, least)))
  rng = np.random.default_rng(seed)
  rows = max(_BLOCK // n, 1)
  count = 0
  for start in range(0, permutations, rows):
    shape = (min(rows, permutations - start), -(-n // 8))
    bits = rng.integers(0, 256, shape, np.uint8)
    ways = np.unpackbits(bits, axis=1, count=n)
    count += int(_extreme(ways, differences, least).sum())
  return (count + 1) / (permutations + 1)


class Paired(NamedTuple):
  """Two systems on the queries that count for both.

  Attributes:
    before: mean of the one.
    after: mean of the other.
    p: of the paired randomization test.
    queries: how many.
  """

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


def holm(p_values: Sequence[float | None]) -> list[float | None]:
  """p values corrected for being several, by Holm's step-down method.

  Reject those of at most alpha, and the chance that any of the rejections is
  wrong is at most alpha. None, of a test that does not apply, stays None, and
  counts as one of the several: the others are not corrected any less for it.
  """
  there = [i for i, p in enumerate(p_values) if p is not None]
  corrected: list[float | None] = [None] * len(p_values)
  largest = 0.0
  for place, i in enumerate(sorted(there, key=p_values.__getitem__)):
    largest = max(largest, min((len(p_values) - place) * p_values[i], 1.0))
    corrected[i] = largest
  return corrected


def _extreme(
    flips: np.ndarray, differences: np.ndarray, least: float
) -> np.ndarray:
  """bool [rows]: whether the flips of a row give a sum of at least `least`."""
  sums = differences.sum() - 2 * (flips.astype(np.float64) @ differences)
  return np.abs(sums) >= least
