"""When a run saves by the clock, and how long that takes."""

import time

from dualenc_jax.training.checkpoints import Checkpoints


class Clock:
  """Times of a run that decide when it saves and stops, seconds.

  Attributes:
    step: the longest time from the end of a step to that of the next, with
      evaluations; the first, which compiles, does not count.
    save: the longest that a checkpoint took until it was on disk, from above.
  """

  def __init__(self, checkpoints: Checkpoints, every_hours: float | None):
    """`every_hours`: the most between checkpoints; None for no limit."""
    self.step = self.save = 0.0
    self._checkpoints = checkpoints
    self._every = None if every_hours is None else every_hours * 3600
    self._saved = time.monotonic()
    self._saving = False
    self._ends: list[float] = []

  def ticks(self) -> None:
    """To be called at the end of each step."""
    now = time.monotonic()
    self._ends = [*self._ends[-2:], now]
    if len(self._ends) == 3:
      self.step = max(self.step, now - self._ends[-2])
    if self._saving and not self._checkpoints.is_saving:
      self._saving = False
      self.save = max(self.save, now - self._saved)

  def saves(self) -> None:
    """To be called as a checkpoint begins."""
    self._saved, self._saving = time.monotonic(), True

  @property
  def is_due(self) -> bool:
    """Whether the last checkpoint is long enough ago."""
    since = time.monotonic() - self._saved
    return self._every is not None and since >= self._every
