"""Signals in an import, and in a callback of the garbage collector."""

import gc
import importlib
import signal
import sys
import time

import pytest

from dualenc_jax.cli import huge_pages, interrupts, main as cli


def test_a_held_one_comes_at_the_end():
  before, done = signal.getsignal(signal.SIGINT), []
  with pytest.raises(KeyboardInterrupt):
    with interrupts.held():
      signal.raise_signal(signal.SIGINT)
      done.append(True)
    done.append('not reached')
  assert done == [True]
  assert signal.getsignal(signal.SIGINT) is before
  with interrupts.held():
    pass


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_is_not_yet_loaded_may_start_again(
    monkeypatch, number, capfd
):
  """With the status of one that has saved its step, not the signal's."""
  monkeypatch.setattr(sys, 'argv', ['dualenc', 'train'])
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'unraisablehook', None)
  monkeypatch.setenv(huge_pages.SWITCH, '0')
  monkeypatch.setattr(
      importlib, 'import_module', lambda name: signal.raise_signal(number)
  )
  both = signal.SIGTERM, signal.SIGUSR1
  before = {each: signal.getsignal(each) for each in both}
  try:
    with pytest.raises(SystemExit) as stopped:
      cli.main()
  finally:
    for each, handler in before.items():
      signal.signal(each, handler)
  assert stopped.value.code == 75
  assert f'{number.name}: stopped' in capfd.readouterr().err


@pytest.mark.parametrize(
    'number, error',
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_one_that_is_ignored_comes_again(monkeypatch, number, error):
  def ended(*_):
    raise error

  def callback(*_):
    gc.callbacks.remove(callback)
    signal.raise_signal(number)

  monkeypatch.setattr(sys, 'unraisablehook', None)
  interrupts.keep()
  before = signal.signal(number, ended)
  try:
    with pytest.raises(error):
      gc.callbacks.append(callback)
      gc.collect()
      for _ in range(300):  # A sleep is not broken off.
        time.sleep(0.1)
  finally:
    signal.signal(number, before)

