"""Progress without a terminal."""

import logging
import types

import pytest

from dualenc_jax.utils import progress as progress_lib
from dualenc_jax.utils.progress import Progress


@pytest.fixture
def clock(caplog, monkeypatch):
  caplog.set_level(logging.INFO, 'dualenc_jax')
  now = types.SimpleNamespace(time=100.0, monotonic=lambda: now.time)
  monkeypatch.setattr(progress_lib, 'time', now)
  return now


def test_a_line_every_ten_seconds(caplog, clock):
  with Progress('Encoding', 1000, 'passages') as progress:
    for _ in range(4):
      clock.time += 5
      progress(100)
  with Progress('Reading', None, 'rows') as progress:
    progress(50)
    clock.time += 10
    progress(50)
  # Only one host shows it.
  with Progress('Training', 10, 'steps', is_shown=False) as progress:
    clock.time += 20
    progress(1)
    progress.log()
  assert caplog.messages == [
      'Encoding: 200 of 1,000 passages, 20 a second, 00:40 left.',
      'Encoding: 400 of 1,000 passages, 20 a second, 00:30 left.',
      'Reading: 100 rows, 5.0 a second.',
  ]


def test_what_does_not_count_for_the_speed(caplog, clock):
  """What an earlier process has done, and steps that were compiled."""
  with Progress('Scoring', 4100, 'pairs', done=3900) as progress:
    clock.time += 5
    progress(100)
    clock.time += 10
    progress(50)
    clock.time += 20
    progress.leave_out(10)
    progress(50, 'loss 1')
  with Progress('Training', 10, 'steps') as progress:
    clock.time += 60
    progress(1)
    clock.time += 30
    progress.leave_out(10)
    progress(1)
  with Progress('Training', 1, 'steps') as progress:
    clock.time += 5
    progress(1)
    progress.log()
  assert caplog.messages == [
      'Scoring: 4,050 of 4,100 pairs, 5.0 a second, 00:10 left.',
      'Scoring: 4,100 of 4,100 pairs, loss 1, 5.0 a second, 00:00 left.',
      'Training: 1 of 10 steps.',
      'Training: 2 of 10 steps, 0.050 a second, 02:40 left.',
      'Training: 1 of 1 steps.',
  ]
