"""When hooks are called, and what becomes of the numbers that they return."""

import numpy as np

from dualenc_jax.run.loop import Hook, Hooks, Training


class Said:
  """A reporter that keeps what it is given."""

  def __init__(self):
    self.calls = []

  def scalars(self, group, step, numbers):
    self.calls.append((group, step, numbers))

  def line(self, text):
    self.calls.append(text)

  def pause(self):
    self.calls.append('pause')


def run(hooks, first, last):
  """(name, step, metrics, has the state) of each call, in order."""
  calls, said = [], Said()

  def hook(name, result=None, **when):
    def call(now):
      calls.append((name, now.step, now.metrics['at'], now.state is not None))
      return result

    return Hook(call, **when)

  call_hooks = Hooks(
      [hook(name, **when) for name, when in hooks.items()], first, last, said
  )
  now = Training(first, np.zeros(1), None, None, {'at': first})
  call_hooks(now)
  while now.step < last:
    now.step += 1
    now.metrics = {'at': now.step}
    call_hooks(now)
    calls.append(('stepped', now.step))
  return calls, said.calls


def test_late_hooks_wait_for_the_next_step_or_another_hook():
  hooks = {'report': dict(every=1, late=True), 'save': dict(every=2)}
  calls, _ = run(hooks, 0, 3)
  assert calls == [
      ('stepped', 1),
      ('report', 1, 1, False),
      ('report', 2, 2, False),
      ('save', 2, 2, True),
      ('stepped', 2),
      ('report', 3, 3, False),
      ('save', 3, 3, True),
      ('stepped', 3),
  ]


def test_at_the_start_at_the_end_and_on_the_way():
  hooks = {
      'both': dict(at_start=True),
      'way': dict(every=4, at_end=False, result={'P@1': 0.5}, group='test'),
  }
  calls, said = run(hooks, 0, 9)
  assert [c[:2] for c in calls if c[0] != 'stepped'] == [
      ('both', 0), ('way', 4), ('way', 8), ('both', 9)
  ]
  # A run that goes on has had its start.
  calls, _ = run(hooks, 3, 9)
  assert [c[:2] for c in calls if c[0] != 'stepped'][0] == ('way', 4)
  assert said == [
      'pause',
      ('test', 4, {'P@1': 0.5}), 'step 4: P@1 0.5000', 'pause',
      ('test', 8, {'P@1': 0.5}), 'step 8: P@1 0.5000', 'pause',
      'pause',
  ]
