"""Ctrl-C that is not lost, and that does not strike within an import."""

import _thread
from collections.abc import Iterator
import contextlib
import signal
import sys
import threading
from typing import Any


@contextlib.contextmanager
def held() -> Iterator[None]:
  """Holds Ctrl-C back; at the end it is a KeyboardInterrupt.

  An import of JAX that is broken off ends with an error of another kind, or
  with a crash.
  """
  came = []
  before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)
  if came:
    raise KeyboardInterrupt


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
