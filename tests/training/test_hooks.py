"""When hooks are called, on all hosts alike, and what becomes of numbers."""

import os
import subprocess
import sys

import numpy as np
import pytest
import two_hosts

from dualenc_jax.training.hooks import Hook, Hooks, Request, Training


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


def run(hooks, first, last, requests=(), notes=None):
  """(name, step) of each call and each step, what is said, and the run."""
  calls, said, requests = [], Said(), iter(requests)
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
      first, last, said, lambda: next(requests, Request.CONTINUE), notes,
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
  requests = [Request.CONTINUE, Request.SAVE, Request.STOP]
  assert called(HOOKS, 0, 9, requests, notes) == ([
      ('evaluate', 0), ('report', 1), ('save', 1), ('report', 2), ('save', 2)
  ], True)
  # The evaluation that was due comes first when the run goes on.
  assert notes == {'left': True}
  assert called(HOOKS, 2, 4, [], notes) == ([
      ('evaluate', 2), ('save', 2), ('report', 3), ('report', 4),
      ('evaluate', 4), ('save', 4),
  ], False)
  assert not notes
  # Told before its first step, a run has nothing new to save.
  assert called(HOOKS, 3, 9, [Request.STOP], notes) == ([], True) and not notes


def test_a_stop_at_the_last_step():
  """The evaluation at the end may take long: it is for the next process."""
  notes, requests = {}, [Request.CONTINUE] * 5 + [Request.STOP]
  calls, is_stopped = called(HOOKS, 0, 5, requests, notes)
  assert is_stopped and calls[-2:] == [('report', 5), ('save', 5)]
  left = [('evaluate', 5), ('save', 5)]
  assert called(HOOKS, 5, 5, [], notes) == (left, False)
  # With none there is nothing to stop.
  only = {'save': HOOKS['save']}
  assert called(only, 0, 5, requests, {}) == ([('save', 4), ('save', 5)], False)


@pytest.mark.parametrize('asked', Request)
def test_what_is_wrong_is_seen_before_it_is_saved(asked):
  saved = []

  def look(now):
    if now.step == 4:
      raise ValueError('bad')

  hooks = Hooks(
      [
          Hook(look, every=1, late=True),
          Hook(lambda now: saved.append(now.step), every=4, saves=True),
      ],
      3, 9, Said(), lambda: asked,
  )
  now = Training(3, np.zeros(1))
  if asked is not Request.STOP:
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
from dualenc_jax.training.hooks import Agreement, Request

step = 0
def request():
  # One asks for a checkpoint until there is one, the other tells to stop.
  if index and step >= 6:
    return Request.STOP
  return Request.SAVE if not index and 2 <= step < 4 else Request.CONTINUE

agree, found = Agreement(request), []
while not found or found[-1] is not Request.STOP:
  step += 1
  found.append(agree())
print('found', [int(each) for each in found])
"""


@pytest.mark.slow
def test_what_one_host_requests_all_do_a_step_later():
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
    # Requested at step 2 and at 3, when nobody knew yet, and saved once.
    assert 'found [0, 0, 1, 0, 0, 0, 2]' in said, said[-3000:]
