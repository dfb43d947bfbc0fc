"""Lengths, counted one by one: exact percentiles in little memory."""

import numpy as np


class Histogram:
  """How many texts have each number of tokens.

  Attributes:
    counts: int64 [longest + 1], texts by their number of tokens.
  """

  def __init__(self):
    self.counts = np.zeros(1, np.int64)

  def add(self, lengths: np.ndarray) -> None:
    """Counts lengths [n], integers of 0 or more."""
    new = np.bincount(lengths, minlength=len(self.counts))
    new[: len(self.counts)] += self.counts
    self.counts = new

  @property
  def total(self) -> int:
    return int(self.counts.sum())

  @property
  def longest(self) -> int:
    return len(self.counts) - 1

  @property
  def mean(self) -> float:
    tokens = np.arange(len(self.counts)) @ self.counts
    return float(tokens / max(self.total, 1))

  def percentile(self, percent: float) -> int:
    """The smallest length that at least `percent` % of texts do not exceed."""
    needed = percent / 100 * self.total
    return int(np.searchsorted(np.cumsum(self.counts), max(needed, 1)))

  def share_above(self, limit: int) -> float:
    """Of the texts, those with more than `limit` tokens."""
    return float(self.counts[limit + 1 :].sum() / max(self.total, 1))
