"""A curve: numbers by step."""

from collections.abc import Mapping
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Series:
  """Values by step.

  Attributes:
    steps: int64 [n], ascending.
    values: float64 [n].
  """

  steps: np.ndarray
  values: np.ndarray

  @classmethod
  def of(cls, values: Mapping[int, float]) -> 'Series':
    """The series of a mapping from step to value."""
    steps = sorted(values)
    return cls(
        np.array(steps, np.int64),
        np.array([values[step] for step in steps], np.float64),
    )

  def __len__(self) -> int:
    return len(self.steps)

  def finite(self) -> 'Series':
    """Without values that are NaN or infinite."""
    return self._at(np.flatnonzero(np.isfinite(self.values)))

  def at(self, step: int) -> float | None:
    """The value of a step, None if it has none."""
    found = np.flatnonzero(self.steps == step)
    return float(self.values[found[0]]) if len(found) else None

  def thinned(self, limit: int = 500) -> 'Series':
    """At most `limit` points that keep the extremes of every stretch.

    The first and the last point stay; of each of (limit - 2) / 2 stretches
    between them, the lowest and the highest.
    """
    if len(self) <= limit:
      return self
    stretches = np.array_split(np.arange(1, len(self) - 1), (limit - 2) // 2)
    keep = {0, len(self) - 1}
    for stretch in stretches:
      values = self.values[stretch]
      keep.update((stretch[values.argmin()], stretch[values.argmax()]))
    return self._at(np.array(sorted(keep)))

  def smoothed(self, window: int) -> 'Series':
    """Means over `window` neighbours of each point, fewer at the ends."""
    half = window // 2
    total = np.concatenate([[0.0], np.cumsum(self.values)])
    index = np.arange(len(self))
    low = np.maximum(index - half, 0)
    high = np.minimum(index + half + 1, len(self))
    return Series(self.steps, (total[high] - total[low]) / (high - low))

  def _at(self, index: np.ndarray) -> 'Series':
    return Series(self.steps[index], self.values[index])
