"""The progress of a long computation: a bar, or a line now and then."""

import contextlib
import logging
import time

import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

_LOG = logging.getLogger(__name__)
_SECONDS = 10.0


class Progress(contextlib.ExitStack):
  """Counts units of work; shows them with their speed and the time left.

  On a terminal this is a bar, above which the log goes on; elsewhere a line is
  logged every ten seconds.
  """

  def __init__(
      self, what: str, total: int | None, unit: str, is_shown: bool = True,
      done: int = 0,
  ):
    """Starts the clock of a work such as 'Encoding', in units like 'passages'.

    Args:
      what: the work.
      total: units in all, None if not known.
      unit: what is counted.
      is_shown: False on hosts that leave it to another.
      done: units that an earlier process has done.
    """
    super().__init__()
    self._what, self._total, self._unit = what, total, unit
    self._is_shown, self._warms_up = is_shown, True
    self._done = self._first = self._last = done
    self._began = self._logged = time.monotonic()
    self._bar = tqdm.tqdm(
        desc=what or None, initial=done, total=total, unit=f' {unit}',
        dynamic_ncols=True, disable=None if is_shown else True,
    )
    if not self._bar.disable:
      # Lines of the log would break the bar.
      self.enter_context(logging_redirect_tqdm())
    self.callback(self._bar.close)

  def __call__(self, count: int, note: str = '') -> None:
    """Counts `count` more units as done; `note` is shown beside them.

    The first ones do not count for the speed: programs are compiled and files
    opened for them.
    """
    if self._warms_up:
      self._warms_up = False
      self.leave_out(time.monotonic() - self._began, count)
    self._done += count
    self._bar.set_postfix_str(note, refresh=False)
    self._bar.update(self._done - self._bar.n)
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

  def _line(self, seconds: float, note: str) -> str:
    rate = (self._done - self._first) / max(seconds, 1e-9)
    whole = '' if self._total is None else f' of {self._total:,}'
    parts = [f'{self._what}: {self._done:,}{whole} {self._unit}']
    parts += [note] if note else []
    # There is none yet where all that is done is left out.
    if rate:
      digits = 0 if rate >= 10 else 1 if rate >= 1 else 3
      parts.append(f'{rate:,.{digits}f} a second')
      if self._total is not None:
        left = tqdm.tqdm.format_interval((self._total - self._done) / rate)
        parts.append(f'{left} left')
    return f'{", ".join(parts)}.'
