"""Signals and times that stop a run."""

import os
import signal
import time

import jax
import pytest

from dualenc_jax.training import stopping as stopping_lib
from dualenc_jax.training.stopping import AnyHost, Stopping

pytestmark = pytest.mark.devices(8)


def wait_for(is_so):
  end = time.monotonic() + 60
  while not is_so():
    assert time.monotonic() < end
    time.sleep(0.01)


def test_one_signal_is_a_notice_and_another_ends_the_process(monkeypatch):
  ended, stopping = [], Stopping()
  monkeypatch.setattr(os, '_exit', ended.append)
  before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
  with stopping.handle_signals(), stopping.between_steps():
    assert stopping.cause is None
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: stopping.cause)
    # A launcher may pass on what the group of its processes got, too.
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.cause == 'SIGTERM' and not ended
    monkeypatch.setattr(stopping_lib, '_SAME_SECONDS', 0.0)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    wait_for(lambda: ended)
  assert ended[0] == 130
  assert before == [
      signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)
  ]


def test_before_the_steps_there_is_nothing_to_save(capfd):
  with Stopping().handle_signals():
    with pytest.raises(SystemExit) as stopped:
      os.kill(os.getpid(), signal.SIGUSR1)
      time.sleep(60)
    assert stopped.value.code == 75
    assert 'SIGUSR1: stopped' in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(60)


def test_hosts_agree_by_one_device_each(monkeypatch):
  """A sum over all would wait for the train step's, and that for it."""
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  answers = iter([True, False, False])
  any_host = AnyHost(lambda: next(answers))
  assert any_host._each.num_devices == 1
  # That of the step before.
  assert [any_host() for _ in range(3)] == [False, True, False]
