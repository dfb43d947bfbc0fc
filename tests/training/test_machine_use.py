"""Time that devices wait for data, and what a step is compiled for again."""

import logging
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.training.machine_use import Programs, Waiting


class Output:
  """Of a step that ends when it is told to."""

  def __init__(self):
    self.ends, self.seen = threading.Event(), threading.Event()

  def block_until_ready(self):
    self.ends.wait()
    self.seen.set()


@pytest.mark.parametrize('slow_input', [True, False])
def test_only_time_without_a_step_under_way_is_waiting(slow_input):
  waiting, before = Waiting(), None
  for _ in range(6):
    if before is not None and slow_input:
      before.ends.set()
      before.seen.wait()
    waiting.batch(lambda: time.sleep(0.03))
    if before is not None:
      before.ends.set()
    before = Output()
    waiting.runs(before)
    if not slow_input:
      time.sleep(0.01)  # A step, before the next batch is begun.
  before.ends.set()
  while len(waiting._steps) < 5:
    time.sleep(0.01)
  if slow_input:
    assert waiting.share > 0.3
  else:
    assert waiting.share == 0.0
  waiting.close()


def test_another_shape_is_named_and_a_second_program_for_one_is_a_mistake(
    caplog,
):
  made = []

  def make(factor):
    # Another closure is another program.
    made.append(jax.jit(lambda batch: jnp.sum(batch['texts']) * factor))
    return made[-1]

  spent = []
  step, programs = make(2.0), Programs(4, spent.append)

  def run(number, rows):
    batch = {'texts': jnp.ones((rows, 4)), 'ids': jnp.ones(2)}
    with programs.step(number, batch):
      step(batch)

  with caplog.at_level(logging.INFO):
    for number in range(1, 4):
      run(number, 8)
    assert not caplog.text
    run(4, 16)
    run(5, 16)
    assert len(caplog.records) == 1 and spent[2] > 0 == spent[3]
    assert (
        'Step 4: the texts need another shape of batch, number 2 of at most 4:'
        ' texts [16, 4]; compiled in'
    ) in caplog.text
    step = make(3.0)
    run(6, 8)
  assert len(caplog.records) == 2
  assert 'WARNING: step 6: the train step was compiled again' in caplog.text
  assert 'for before: ids [2], texts [8, 4].' in caplog.text
