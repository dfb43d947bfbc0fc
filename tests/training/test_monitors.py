"""What is warned of, skipped and stopped for by the numbers of a step."""

import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.training import monitors
from dualenc_jax.training.hooks import Training
from dualenc_jax.training.monitors import BatchShapes, InputTimer
from dualenc_jax.utils.errors import UserError

PATHS = ['a', 'b/c']


def at(step, notes=None, **metrics):
  fine = {
      'loss': 1.0,
      'gradient_squares': np.ones(2, np.float32),
      'finite': np.ones(2, bool),
  }
  run = Training(step, None, fine | metrics)
  run.notes = {} if notes is None else notes
  return run


def test_what_is_not_finite_stops_by_name():
  call = monitors.stop_at_non_finite(PATHS, 0, print).call
  call(at(1))
  for metrics, words in [
      ({'loss': np.nan}, r'Step 7: the loss is not finite\. Lower'),
      (
          {'gradient_squares': np.array([1, np.inf], np.float32)},
          'Step 7: the gradient of b/c is not finite',
      ),
      (
          {'finite': np.array([False, True])},
          'Step 7: the updated a is not finite',
      ),
  ]:
    with pytest.raises(UserError, match=words):
      call(at(7, **metrics))


def test_skipped_steps_are_counted_in_a_row():
  said, notes = [], {}
  bad = {'loss': np.nan, 'skipped': 1.0}
  # A run that goes on elsewhere counts on, by the notes of its checkpoint.
  for part in ([bad, bad], [{'skipped': 0.0}, bad]):
    call = monitors.stop_at_non_finite(PATHS, 2, said.append).call
    for step, metrics in enumerate(part):
      call(at(step, notes, **metrics))
  assert notes == {'skipped': {'in_a_row': 1, 'total': 3}}
  assert 'number 2 of at most 2 in a row, 2 in all' in said[1]
  assert len(said) == 3
  call(at(4, notes, **bad))
  with pytest.raises(UserError, match='Step 5: .* one more in a row than'):
    call(at(5, notes, **bad))
  # What the update itself has spoilt was not skipped.
  with pytest.raises(UserError, match='the updated a is not finite'):
    call(at(6, {}, finite=np.array([False, True]), skipped=0.0))


class Output:
  """Of a step that ends when it is told to."""

  def __init__(self):
    self.ends, self.seen = threading.Event(), threading.Event()

  def block_until_ready(self):
    self.ends.wait()
    self.seen.set()


@pytest.mark.parametrize('slow_input', [True, False])
def test_only_time_without_a_step_under_way_is_waiting(slow_input):
  timer, before = InputTimer(), None
  for _ in range(6):
    if before is not None and slow_input:
      before.ends.set()
      before.seen.wait()
    timer.time_batch(lambda: time.sleep(0.03))
    if before is not None:
      before.ends.set()
    before = Output()
    timer.start_step(before)
    if not slow_input:
      time.sleep(0.01)  # A step, before the next batch is begun.
  before.ends.set()
  while len(timer._steps) < 5:
    time.sleep(0.01)
  if slow_input:
    assert timer.share > 0.3
  else:
    assert timer.share == 0.0
  timer.close()


def test_another_shape_of_batch_is_named(caplog):
  spent = []
  step = jax.jit(lambda batch: jnp.sum(batch['texts']))
  shapes = BatchShapes(4, spent.append)
  with caplog.at_level(logging.INFO):
    for number, rows in enumerate((8, 8, 16, 16, 8), 1):
      batch = {'texts': jnp.ones((rows, 4)), 'ids': jnp.ones(2)}
      with shapes.step(number, batch):
        step(batch)
  assert len(caplog.records) == 1 and len(spent) == 1 and spent[0] > 0
  assert (
      'Step 3: the texts need another shape of batch, number 2 of at most 4:'
      ' texts [16, 4]; compiled in'
  ) in caplog.text
