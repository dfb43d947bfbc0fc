"""The progress of a long computation: a bar, or a line now and then."""

import contextlib
import logging
import time
from typing import Any

import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

_LOG = logging.getLogger(__name__)
_SECONDS = 10.0


class Progress(contextlib.ExitStack):
  """Counts what is done; shows it with its speed and the time left.

  On a terminal this is a bar, above which the log goes on; elsewhere a line is
  logged every ten seconds.
  """

  def __init__(
      self, what: str, total: int | None, unit: str, is_shown: bool = True
  ):
    """Starts the clock of a work such as 'Encoding', in units like 'passages'.

    With a total of None, not known yet, the bar appears with the first ones. It
    is not shown on hosts that leave it to another.
    """
    super().__init__()
    self._what, self._total, self._unit = what, total, unit
    self._is_shown, self._warms_up = is_shown, True
    self._done = self._first = self._last = 0
    self._began = self._logged = time.monotonic()
    self._bar: Any = None
    if total is not None:
      self._open()

  def __call__(self, count: int, note: str = '') -> None:
    """Counts `count` more units as done; `note` is shown beside them.

    The first ones are no measure of the speed: programs are compiled and files
    opened for them.
    """
    if self._bar is None:
      self._open()
    if self._warms_up:
      self._warms_up = False
      self.leave_out(time.monotonic() - self._began, count)
    self.reach(self._done + count, self._total, note)

  def reach(self, done: int, total: int | None, note: str = '') -> None:
    """`done` units are done, of about `total`.

    Those of the first call before any other count as done by an earlier
    process: the speed is that of the others.
    """
    if self._bar is None:
      self._first = done
      self._open()
    self._done, self._total = done, total and max(total, done)
    self._bar.total = self._total
    self._bar.set_postfix_str(note, refresh=False)
    self._bar.update(done - self._bar.n)
    if time.monotonic() - self._logged >= _SECONDS:
      self.log(note)

  def log(self, note: str = '') -> None:
    """Logs a line where no bar is shown, once for a count."""
    self._logged = time.monotonic()
    is_new, self._last = self._done != self._last, self._done
    if is_new and self._is_shown and self._bar.disable:
      _LOG.info('%s', self._line(self._logged - self._began, note))

  def leave_out(self, seconds: float, count: int = 0) -> None:
    """Takes time and units done in it out of the speed."""
    self._began += seconds
    self._first += count
    if not self._bar.disable:
      self._bar.start_t += seconds
      self._bar.initial += count

  def _open(self) -> None:
    self._bar = tqdm.tqdm(
        desc=self._what or None, initial=self._first, total=self._total,
        unit=f' {self._unit}', dynamic_ncols=True,
        disable=None if self._is_shown else True,
    )
    if not self._bar.disable:
      # Lines of the log would else break the bar.
      self.enter_context(logging_redirect_tqdm())
    self.callback(self._bar.close)

  def _line(self, seconds: float, note: str) -> str:
    rate = (self._done - self._first) / max(seconds, 1e-9)
    parts = [f'{self._what}: {self._done:,} {self._unit}']
    if self._total is not None:
      parts = [f'{self._what}: {self._done:,} of {self._total:,} {self._unit}']
    parts += [note] if note else []
    # There is none yet where all that is done is left out.
    if rate:
      digits = 0 if rate >= 10 else 1 if rate >= 1 else 3
      parts.append(f'{rate:,.{digits}f} a second')
    if self._total is not None and rate:
      left = tqdm.tqdm.format_interval((self._total - self._done) / rate)
      parts.append(f'{left} left')
    return f'{", ".join(parts)}.'
