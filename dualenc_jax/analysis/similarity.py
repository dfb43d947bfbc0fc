"""Ratios of query-query to query-passage similarities: SamToNe, figure 6."""

import dataclasses

import numpy as np

DRAWS = 50_000
# A smaller denominator is noise: the ratio would say nothing.
TINY = 1e-6
_BLOCK = 2048


@dataclasses.dataclass(frozen=True)
class Ratios:
  """sim(q_i, q_j) / sim(q_i, p_j) of drawn pairs i != j.

  Attributes:
    values: float64 [at most draws], those with a denominator.
    left_out: draws whose denominator is nearer to 0 than `TINY`.
  """

  values: np.ndarray
  left_out: int

  @property
  def median(self) -> float:
    """NaN if every draw was left out."""
    return float(np.median(self.values)) if len(self.values) else float('nan')

  def share_within(self, low: float, high: float) -> float:
    """Of the values, those from `low` to `high`."""
    inside = (self.values >= low) & (self.values <= high)
    return float(inside.mean()) if len(inside) else float('nan')


def similarity_ratios(
    queries: np.ndarray,
    passages: np.ndarray,
    draws: int = DRAWS,
    seed: int = 0,
) -> Ratios:
  """Draws pairs i != j, with replacement, and takes their ratios.

  Args:
    queries: float [n, D], unit vectors, n at least 2.
    passages: float [n, D], unit vectors; p_j belongs to q_j.
    draws: how many pairs.
    seed: of the draws.
  """
  rng = np.random.default_rng(seed)
  first = rng.integers(len(queries), size=draws)
  # From 1 to n - 1 places further on, in a circle: never itself.
  step = rng.integers(1, len(queries), size=draws)
  second = (first + step) % len(queries)
  values, left_out = [], 0
  for start in range(0, draws, _BLOCK):
    i, j = first[start : start + _BLOCK], second[start : start + _BLOCK]
    anchors = queries[i].astype(np.float64)
    numerators = np.sum(anchors * queries[j], axis=1)
    denominators = np.sum(anchors * passages[j], axis=1)
    usable = np.abs(denominators) >= TINY
    left_out += int(np.count_nonzero(~usable))
    values.append(numerators[usable] / denominators[usable])
  return Ratios(np.concatenate(values), left_out)
