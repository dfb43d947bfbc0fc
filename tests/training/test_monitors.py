"""What is warned of and stopped for by the numbers of a step."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.training import monitors
from dualenc_jax.training.hooks import Training
from dualenc_jax.training.monitors import BatchShapes
from dualenc_jax.utils.errors import UserError

PATHS = ['a', 'b/c']


def at(step, **metrics):
  fine = {
      'loss': 1.0,
      'gradient_squares': np.ones(2, np.float32),
      'finite': np.ones(2, bool),
  }
  return Training(step, None, fine | metrics)


def test_what_is_not_finite_stops_by_name():
  call = monitors.stop_at_non_finite(PATHS).call
  call(at(1))
  for metrics, words in [
      ({'loss': np.nan}, r'Step 7: the loss is not finite\. The run has'),
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


class Lines:
  """A reporter that keeps what it gets."""

  def __init__(self):
    self.numbers, self.lines = [], []

  def scalars(self, group, step, numbers):
    self.numbers.append(numbers['late_batches'])

  def line(self, text):
    self.lines.append(text)


def test_slow_input_is_warned_of_once():
  late, reporter = [], Lines()
  hook = monitors.report_late_batches(late, reporter)
  for step, ended in ((100, False), (200, True), (300, True), (400, False)):
    late += [ended] * 100
    hook.call(at(step))
  assert reporter.numbers == [0, 1, 1, 0]
  (line,) = reporter.lines
  assert 'step 200: the input is slow: devices waited for 100%' in line


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
      'Step 3: the texts need another shape of batch, number 2 of at most 4,'
      ' compiled in'
  ) in caplog.text
