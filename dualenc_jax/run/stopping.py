"""What tells a run to stop before its steps are done, to go on later."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from typing import Any

from dualenc_jax.errors import INTERRUPTED, RUN_AGAIN

# `kill`, preemption; Ctrl-C; SLURM's --signal=USR1@60.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# One notice may come twice: to a launcher, which passes it on, and to the group
# of its processes. Later than this a second one is meant.
_SAME_SECONDS = 1.0
# What a time to stop at leaves free, beside a step and a checkpoint: so much of
# it, but no more than a minute.
_SPARE_SHARE, _SPARE_SECONDS = 0.05, 60.0
_LOG = logging.getLogger(__name__)


class Stopping:
  """Whether a run is to stop at the end of a step, and why.

  In a `with` of `watching` it is told by SIGTERM, SIGINT and SIGUSR1. Between
  steps of a run, `between_steps`, the first is a notice, and a second, a second
  later or more, ends the process at once with status 128 + its number. Outside
  of them there is nothing to save: SIGINT is a KeyboardInterrupt, the others
  end the program with status 75 (`errors.RUN_AGAIN`).

  Attributes:
    told: by whom; None as long as nobody has.
  """

  def __init__(
      self,
      seconds: float | None = None,
      notices: Sequence[Callable[[], str | None]] = (),
  ):
    """Listens to nothing yet.

    Args:
      seconds: from the program's start, by when it has stopped; None: no limit.
      notices: asked in a thread once a second; what one returns ends the run.
    """
    self.told: str | None = None
    self._seconds, self._notices = seconds, notices
    self._stepping = False
    self._signalled_at: float | None = None

  @property
  def status(self) -> int:
    """What a program exits with that was told."""
    return INTERRUPTED if self.told == 'SIGINT' else RUN_AGAIN

  def reason(self, spent: float, step: float, save: float) -> str | None:
    """Why to stop now, if there is a reason.

    Args:
      spent: seconds since the program's start.
      step: seconds of the longest step so far.
      save: seconds of the longest checkpoint so far.
    """
    if self.told is None and self._seconds is not None:
      spare = min(_SPARE_SHARE * self._seconds, _SPARE_SECONDS)
      left = self._seconds - spent
      if left < step + 2 * save + spare:
        self.told = f'{max(left, 0):.0f} s are left of --stop_after'
    return self.told

  @contextlib.contextmanager
  def between_steps(self) -> Iterator[None]:
    """Where a notice waits for the end of a step."""
    self._stepping = True
    try:
      yield
    finally:
      self._stepping = False

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Listens to signals, in the main thread alone, and to the notices."""
    done = threading.Event()
    for notice in self._notices:
      self._start(self._ask, notice, done)
    try:
      with self._signals():
        yield
    finally:
      done.set()

  @contextlib.contextmanager
  def _signals(self) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    # A thread reads which came, so that a long call into XLA delays nothing.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {each: signal.signal(each, self._handle) for each in SIGNALS}
    self._start(self._read, reader)
    try:
      yield
    finally:
      for each, handler in before.items():
        signal.signal(each, handler)
      signal.set_wakeup_fd(wakeup)
      writer.close()

  def _start(self, target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()

  def _handle(self, number: int, frame: Any) -> None:
    del frame
    if self._stepping or self.told is not None:
      return
    if number == signal.SIGINT:
      raise KeyboardInterrupt
    # Printing may be what was interrupted.
    name = signal.Signals(number).name
    os.write(
        2,
        f'\n{name}: stopped; there was no step to save. Run the same command'
        ' again to go on.\n'.encode(),
    )
    raise SystemExit(RUN_AGAIN)

  def _read(self, reader: socket.socket) -> None:
    with reader:
      while data := reader.recv(1):
        if data[0] in SIGNALS and (self._stepping or self.told is not None):
          self._signalled(data[0])

  def _signalled(self, number: int) -> None:
    name, now = signal.Signals(number).name, time.monotonic()
    if self._signalled_at is None:
      self._signalled_at = now
      if self.told is None:
        self._tell(name)
    elif now - self._signalled_at >= _SAME_SECONDS:
      os.write(2, f'{name} again: stopping at once.\n'.encode())
      os._exit(128 + number)

  def _ask(
      self, notice: Callable[[], str | None], done: threading.Event
  ) -> None:
    while self.told is None and not done.is_set():
      if said := notice():
        self._tell(said)
      done.wait(1.0)

  def _tell(self, by: str) -> None:
    self.told = by
    _LOG.warning(
        '%s: the run stops at the end of a step and saves a checkpoint of it. A'
        ' second signal stops it at once.',
        by,
    )
