"""Signals and times that stop a run."""

import os
import signal
import time
import types

import pytest

from dualenc_jax.training import stopping as stopping_lib
from dualenc_jax.training.stopping import Clock, Stopping


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
    assert stopping.check(1e9, 1, 1) is None
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: stopping.cause)
    # A launcher may pass on what the group of its processes got, too.
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.check(0, 1, 1) == 'SIGTERM' and not ended
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


@pytest.mark.parametrize(
    ('spent', 'step', 'save', 'stops'),
    [
        # 4 h less a minute, a step and two saves.
        (4 * 3600 - 60 - 10 - 2 * 30 - 1, 10, 30, False),
        (4 * 3600 - 60 - 10 - 2 * 30 + 1, 10, 30, True),
    ],
)
def test_there_is_time_left_for_a_step_and_a_save(spent, step, save, stops):
  found = Stopping(4 * 3600.0).check(spent, step, save)
  assert bool(found) == stops
  assert not stops or 'of --stop_after' in found


@pytest.fixture
def now(monkeypatch):
  """The time, which tests set, in seconds."""
  time = types.SimpleNamespace(at=0.0)
  time.monotonic = lambda: time.at
  monkeypatch.setattr(stopping_lib, 'time', time)
  return time


def test_hours_since_the_last_checkpoint(now):
  clock = Clock(types.SimpleNamespace(is_saving=False), 0.5)
  now.at = 1799.0
  assert not clock.save_is_due
  now.at = 1801.0
  assert clock.save_is_due
  # Whatever a checkpoint was for, the next is half an hour later.
  clock.start_save()
  assert not clock.save_is_due
  now.at = 1801.0 + 1800.0
  assert clock.save_is_due
  assert not Clock(types.SimpleNamespace(is_saving=False), None).save_is_due


def test_the_longest_step_and_the_longest_save(now):
  disk = types.SimpleNamespace(is_saving=False)
  clock = Clock(disk, None)
  # The start, a first step that compiles, and two; the last with evaluation.
  for now.at in (10.0, 100.0, 101.0, 107.0):
    clock.end_step()
  assert clock.step == 6.0 and clock.save == 0.0
  clock.start_save()
  disk.is_saving = True
  for now.at in (108.0, 109.0):
    clock.end_step()
  disk.is_saving = False
  now.at = 110.0
  clock.end_step()
  assert clock.step == 6.0 and clock.save == 3.0
