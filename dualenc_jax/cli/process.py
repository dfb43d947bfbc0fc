"""The process of a command: its signals, memory and output.

This module imports nothing heavy, as most of it runs before JAX is imported.
"""

import _thread
from collections.abc import Iterator, Mapping
import contextlib
import ctypes
import os
import pathlib
import signal
import sys
import threading
from typing import Any

from dualenc_jax.parallel import accelerators

# A user turns huge pages off by GLIBC_TUNABLES=glibc.malloc.hugetlb=0.
TUNABLE = 'glibc.malloc.hugetlb'
_HUGE_PAGES = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')
# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_M_MMAP_MAX, _M_ARENA_MAX = -4, -8


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
  """Holds back signals that have a handler until the end of the block.

  An interrupted import of JAX ends with an error of another kind, or a crash.
  """
  handled = [
      number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
      if callable(signal.getsignal(number))
  ]
  before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def send_ignored_signals_again() -> None:
  """Sends a signal again if Python has ignored the exception of its handler.

  Python does so in callbacks of the garbage collector, of which JAX has one.
  """
  report = sys.unraisablehook

  def hook(ignored: Any) -> None:
    signals = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
    number = signals.get(ignored.exc_type)
    if number is None:
      report(ignored)
    while number is not None:
      # Later, as here it would be ignored, too. On a busy machine it may come
      # before `start` has returned.
      try:
        threading.Timer(0.05, _thread.interrupt_main, [number]).start()
        return
      except tuple(signals):
        continue

  sys.unraisablehook = hook


def restart_with_huge_pages() -> None:
  """Starts this program again, with the same id, where huge pages help.

  XLA on a CPU allocates the temporaries of a step by malloc and touches them
  for the first time again and again. On pages of 4 KiB the faults take a third
  to a half of a training step; on huge pages they do not count. glibc reads
  its tunables when a process starts.
  """
  changed = with_huge_pages(os.environ)
  if changed is not None:
    # An interrupt waits until the new program has its handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], changed)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def with_huge_pages(
    current: Mapping[str, str],
    mode: pathlib.Path = _HUGE_PAGES,
    devices: pathlib.Path = pathlib.Path('/dev'),
) -> dict[str, str] | None:
  """The environment that asks for huge pages; None where nothing is gained.

  Nothing is gained where the user has chosen, where the kernel gives huge pages
  to all or to none (its file `mode`), and where JAX computes on an accelerator.
  """
  tunables = current.get('GLIBC_TUNABLES', '')
  if TUNABLE in tunables:
    return None
  try:
    on_request = '[madvise]' in mode.read_text()
  except OSError:
    return None
  if not on_request:
    return None
  chosen = current.get('JAX_PLATFORMS')
  if chosen != 'cpu' and accelerators.has_accelerator(devices):
    return None
  both = ':'.join(filter(None, [tunables, f'{TUNABLE}=1']))
  return {**current, 'GLIBC_TUNABLES': both}


def keep_freed_memory() -> None:
  """Keeps glibc from giving freed memory back; elsewhere does nothing.

  XLA on the CPU frees the temporaries of a step, gigabytes, and the kernel
  would fault every page of them in again in the next one: a fifth of the time.
  """
  _mallopt({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1})


def return_freed_memory() -> None:
  """Makes glibc give freed tensors back at once; elsewhere does nothing.

  For commands that have one large model in memory after the other: by itself
  glibc keeps what is freed of blocks up to 32 MB.
  """
  _mallopt({_M_MMAP_THRESHOLD: 1 << 20, _M_ARENA_MAX: 2})


def _mallopt(values: dict[int, int]) -> None:
  try:
    libc = ctypes.CDLL('libc.so.6')
    for parameter, value in values.items():
      libc.mallopt(parameter, value)
  except (OSError, AttributeError):
    pass


def keep_output_apart() -> None:
  """Has what libraries print go to standard error, and Python alone to output.

  Gloo prints a line for each group of CPUs that it connects, which would stand
  among a command's results.
  """
  sys.stdout.flush()
  own = os.dup(1)
  os.dup2(2, 1)
  sys.stdout = open(
      own, 'w', encoding=sys.stdout.encoding, errors=sys.stdout.errors,
      buffering=1,
  )
