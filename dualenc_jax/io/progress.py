"""How far a long computation is: a bar, or a line now and then."""

import logging
import time

import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

_LOG = logging.getLogger(__name__)


class Progress:
  """Counts what is done; shows it with its speed and the time left.

  On a terminal it is a bar; elsewhere a line is logged every `seconds`. A
  context manager.
  """

  def __init__(
      self, what: str, total: int, unit: str, seconds: float = 30.0
  ):
    """Starts the clock.

    Args:
      what: is done: 'Encoding'.
      total: how many there are to do.
      unit: what is counted, 'passages'.
      seconds: between two lines.
    """
    self._what, self._total, self._unit = what, total, unit
    self._seconds = seconds
    self._done = 0
    self._started = self._told = time.monotonic()
    self._bar = tqdm.tqdm(
        desc=what, total=total, unit=f' {unit}', disable=None
    )
    self._is_bar = not self._bar.disable
    # Lines of the log would else break the bar.
    self._redirect = logging_redirect_tqdm()

  def __call__(self, count: int) -> None:
    """`count` more are done."""
    self._done += count
    self._bar.update(count)
    now = time.monotonic()
    if not self._is_bar and now - self._told >= self._seconds:
      self._told = now
      _LOG.info('%s', self._line(now - self._started))

  def __enter__(self) -> 'Progress':
    if self._is_bar:
      self._redirect.__enter__()
    return self

  def __exit__(self, *error) -> None:
    self._bar.close()
    if self._is_bar:
      self._redirect.__exit__(*error)

  def _line(self, seconds: float) -> str:
    rate = self._done / seconds
    left = tqdm.tqdm.format_interval((self._total - self._done) / rate)
    return (
        f'{self._what}: {self._done:,} of {self._total:,} {self._unit},'
        f' {rate:,.0f} a second, {left} left.'
    )
