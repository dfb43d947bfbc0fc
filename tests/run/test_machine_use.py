"""Time that devices wait for data, and what a step is compiled for again."""

import logging
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.run.hooks import Training
from dualenc_jax.run.machine_use import Programs, report_use, Waiting


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


def test_slow_input_is_told_once_and_what_is_used_is_written():
  class Slow:
    share = 0.5

  class Said:
    def __init__(self):
      self.lines, self.numbers = [], []

    def line(self, text):
      self.lines.append(text)

    def scalars(self, group, step, numbers):
      self.numbers.append((group, step, numbers))

  said, slow = Said(), Slow()
  hook = report_use(slow, said)
  assert hook.late and not hook.at_end and hook.every == 100
  for step, share in [(100, 0.09), (200, 0.5), (300, 0.6), (400, 0), (500, 1)]:
    slow.share = share
    hook.call(Training(step, None, None, None))
  assert [line.partition(':')[2][:10] for line in said.lines] == [
      ' step 200:', ' step 500:'
  ]
  assert 'devices wait for data 50% of the time' in said.lines[0]
  group, step, numbers = said.numbers[1]
  assert (group, step) == ('resources', 200)
  assert numbers['waiting_for_data'] == 0.5
  assert 0 < numbers['host_mib'] <= numbers['host_peak_mib']


def test_another_shape_is_named_and_a_second_program_for_one_is_a_mistake(
    caplog,
):
  made = []

  def make(factor):
    # Another closure is another program.
    made.append(jax.jit(lambda batch: jnp.sum(batch['texts']) * factor))
    return made[-1]

  step, programs = make(2.0), Programs(4)

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
    assert len(caplog.records) == 1
    assert (
        'Step 4: the texts need another shape of batch, number 2 of at most 4:'
        ' texts [16, 4]; compiled in'
    ) in caplog.text
    step = make(3.0)
    run(6, 8)
  assert len(caplog.records) == 2
  assert 'WARNING: step 6: the train step was compiled again' in caplog.text
  assert 'for before: ids [2], texts [8, 4].' in caplog.text
