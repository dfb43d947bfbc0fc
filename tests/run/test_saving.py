"""Times that decide when a run saves and stops."""

import types

import pytest

from dualenc_jax.run import saving


@pytest.fixture
def now(monkeypatch):
  """The time, which tests set, in seconds."""
  time = types.SimpleNamespace(at=0.0)
  time.monotonic = lambda: time.at
  monkeypatch.setattr(saving, 'time', time)
  return time


def test_hours_since_the_last_checkpoint(now):
  clock = saving.Clock(types.SimpleNamespace(is_saving=False), 0.5)
  now.at = 1799.0
  assert not clock.is_due
  now.at = 1801.0
  assert clock.is_due
  # Whatever a checkpoint was for, the next is half an hour later.
  clock.saves()
  assert not clock.is_due
  now.at = 1801.0 + 1800.0
  assert clock.is_due
  assert not saving.Clock(types.SimpleNamespace(is_saving=False), None).is_due


def test_the_longest_step_and_the_longest_save(now):
  disk = types.SimpleNamespace(is_saving=False)
  clock = saving.Clock(disk, None)
  # The start, a first step that compiles, and two; the last with evaluation.
  for now.at in (10.0, 100.0, 101.0, 107.0):
    clock.ticks()
  assert clock.step == 6.0 and clock.save == 0.0
  clock.saves()
  disk.is_saving = True
  for now.at in (108.0, 109.0):
    clock.ticks()
  disk.is_saving = False
  now.at = 110.0
  clock.ticks()
  assert clock.step == 6.0 and clock.save == 3.0
