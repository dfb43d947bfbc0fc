"""Signals that are not lost, and that do not strike within an import."""

import _thread
from collections.abc import Iterator
import contextlib
import signal
import sys
import threading
from typing import Any


@contextlib.contextmanager
def held() -> Iterator[None]:
  """Holds back signals that have a handler; the first comes at the end.

  An import of JAX that is broken off ends with an error of another kind, or
  with a crash.
  """
  came: list[int] = []
  before = {
      number: signal.signal(number, lambda number, _: came.append(number))
      for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
      if callable(signal.getsignal(number))
  }
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  for first in came[:1]:
    signal.raise_signal(first)


def keep() -> None:
  """Sends a signal again whose exception Python has ignored.

  That happens where a handler is run within a callback of the garbage
  collector, of which JAX has one.
  """
  report = sys.unraisablehook

  def hook(ignored: Any) -> None:
    signals = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
    number = signals.get(ignored.exc_type)
    if number is None:
      report(ignored)
    else:  # Later, as here it would be ignored, too.
      threading.Timer(0.05, _thread.interrupt_main, [number]).start()

  sys.unraisablehook = hook
