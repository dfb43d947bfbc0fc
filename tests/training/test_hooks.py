"""When hooks are called, on all hosts alike, and what becomes of numbers."""

import os
import subprocess
import sys

import numpy as np
import pytest
import two_hosts

from dualenc_jax.training.hooks import Hook, Hooks, Training


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


def run(hooks, first, last, stop_at=None, notes=None):
  """(name, step) of each call and each step, what is said, and the run."""
  calls, said = [], Said()
  notes = {} if notes is None else notes

  def hook(name, result=None, **when):
    def call(now):
      assert now.metrics['at'] == now.step
      assert (now.state is None) == when.get('late', False)
      calls.append((name, now.step))
      return result

    return Hook(call, **when)

  call_hooks = Hooks(
      [hook(name, **when) for name, when in hooks.items()],
      first, last, said, lambda: now.step == stop_at, notes,
  )
  now = Training(first, np.zeros(1), {'at': first}, notes=notes)
  if call_hooks.left or first < last:
    call_hooks(now)
  while now.step < last and not now.stopped:
    now.step += 1
    now.metrics = {'at': now.step}
    call_hooks(now)
    calls.append(('stepped', now.step))
  return calls, said.calls, now


def called(*args):
  """The calls alone, and whether the run was stopped."""
  calls, _, now = run(*args)
  return [call for call in calls if call[0] != 'stepped'], now.stopped


def test_late_hooks_wait_for_the_next_step_or_another_hook():
  hooks = {'report': dict(every=1, late=True), 'save': dict(every=2)}
  calls, _, _ = run(hooks, 0, 3)
  assert calls == [
      ('stepped', 1),
      ('report', 1), ('report', 2), ('save', 2), ('stepped', 2),
      ('report', 3), ('save', 3), ('stepped', 3),
  ]


def test_at_the_start_at_the_end_and_on_the_way():
  hooks = {
      'both': dict(at_start=True),
      'way': dict(every=4, at_end=False, result={'P@1': 0.5}, group='test'),
  }
  calls, _ = called(hooks, 0, 9)
  assert calls == [('both', 0), ('way', 4), ('way', 8), ('both', 9)]
  # A run that goes on has had its start.
  assert called(hooks, 3, 9)[0][0] == ('way', 4)
  assert run(hooks, 3, 9)[1] == [
      ('test', 4, {'P@1': 0.5}), 'step 4: P@1 0.5000', 'pause',
      ('test', 8, {'P@1': 0.5}), 'step 8: P@1 0.5000', 'pause',
      'pause',
  ]


HOOKS = {
    'report': dict(every=1, late=True),
    'evaluate': dict(every=2, at_start=True),
    'save': dict(every=4, saves=True),
}


def test_a_run_that_stops_reports_and_saves_and_leaves_the_rest():
  notes = {}
  assert called(HOOKS, 0, 9, 2, notes) == ([
      ('evaluate', 0), ('report', 1), ('report', 2), ('save', 2)
  ], True)
  # The evaluation that was due comes first when the run goes on.
  assert notes == {'left': True}
  assert called(HOOKS, 2, 4, None, notes) == ([
      ('evaluate', 2), ('save', 2), ('report', 3), ('report', 4),
      ('evaluate', 4), ('save', 4),
  ], False)
  assert not notes
  # Told before its first step, a run has nothing new to save.
  assert called(HOOKS, 3, 9, 3, notes) == ([], True) and not notes


def test_a_stop_at_the_last_step():
  """The evaluation at the end may take long: it is for the next process."""
  notes = {}
  calls, is_stopped = called(HOOKS, 0, 5, 5, notes)
  assert is_stopped and calls[-2:] == [('report', 5), ('save', 5)]
  left = [('evaluate', 5), ('save', 5)]
  assert called(HOOKS, 5, 5, None, notes) == (left, False)
  # With none there is nothing to stop.
  only = {'save': HOOKS['save']}
  assert called(only, 0, 5, 5, {}) == ([('save', 4), ('save', 5)], False)


@pytest.mark.parametrize('is_stopped', [False, True])
def test_what_is_wrong_is_seen_before_it_is_saved(is_stopped):
  saved = []

  def look(now):
    if now.step == 4:
      raise ValueError('bad')

  hooks = Hooks(
      [
          Hook(look, every=1, late=True),
          Hook(lambda now: saved.append(now.step), every=4, saves=True),
      ],
      3, 9, Said(), lambda: is_stopped,
  )
  now = Training(3, np.zeros(1))
  if not is_stopped:
    hooks(now)
  now.step = 4
  with pytest.raises(ValueError, match='bad'):
    hooks(now)
  assert not saved


HOST = """
import sys
import jax
address, index = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, 2, index)
from dualenc_jax.training.stopping import AnyHost

step, found = 0, []
stop = AnyHost(lambda: index == 1 and step >= 4)
while not found or not found[-1]:
  step += 1
  found.append(stop())
print('found', [int(each) for each in found])
"""


@pytest.mark.slow
def test_where_one_host_stops_all_do_a_step_later():
  address = f'localhost:{two_hosts.free_port()}'
  hosts = [
      subprocess.Popen(
          [sys.executable, '-c', HOST, address, str(index)],
          env=os.environ
          | {'PYTHONPATH': str(two_hosts.ROOT), 'JAX_NUM_CPU_DEVICES': '2'},
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
      )
      for index in range(2)
  ]
  for _, said in two_hosts.ends(hosts):
    assert 'found [0, 0, 0, 0, 1]' in said, said[-3000:]
