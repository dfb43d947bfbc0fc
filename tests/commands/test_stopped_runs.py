"""Runs that are asked to stop: what they leave, and how they go on."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import interrupted
from interrupted import assert_bit_equal, saved
import metadata_server
import pytest
import tiny_run
import two_hosts

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError
from dualenc_jax.run.stopping import Stopping

pytestmark = pytest.mark.slow
# A run that ends by itself would be no test of stopping.
STEPS = 20_000


def flags(folder, model, *more):
  return [
      *tiny_run.flags(folder), f'--gin.STEPS={STEPS}',
      '--gin.CHECKPOINT_EVERY=100000',
      '--gin.optax.linear_schedule.transition_steps=1000', *more,
      f'--model_dir={folder / model}',
  ]


def start(*argv):
  return interrupted.start(*argv, stderr=subprocess.PIPE)


def steps_taken(model_dir):
  path = model_dir / 'metrics.jsonl'
  return path.read_text().count('\n') if path.exists() else 0


def wait_for_steps(process, model_dir, count=3):
  while steps_taken(model_dir) < count:
    assert process.poll() is None, process.communicate()
    time.sleep(0.02)


def meta(model_dir, step=2):
  path = model_dir / f'checkpoints/{step}/meta/metadata'
  return json.loads(path.read_text())


def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path):
  model = tmp_path / 'model'
  argv = flags(tmp_path, 'model', '--gin.KEEP_BEST=nDCG@10')
  argv.append('--gin.EVAL_EVERY=2')
  process = start('train', *argv)
  wait_for_steps(process, model, 6)
  process.send_signal(signal.SIGTERM)
  said = process.communicate()[1]
  assert process.returncode == 75, said
  step = interrupted.newest(model)
  assert f'Stopped at step {step} of {STEPS}: SIGTERM.' in said
  assert 'step 2: ' in said and 'Traceback' not in said

  # The schedule is given, so that both may end soon.
  last = f'--gin.STEPS={step + 3}'
  train.main([*argv, last, '--allow_config_change'])
  whole = flags(
      tmp_path, 'whole', '--gin.KEEP_BEST=nDCG@10', '--gin.EVAL_EVERY=2', last
  )
  train.main(whole)
  assert_bit_equal(saved(tmp_path / 'whole', step + 3), saved(model, step + 3))
  a, b = map(tiny_run.logged, (model, tmp_path / 'whole'))
  for lines in (a, b):
    for line in lines:
      line.pop('examples_per_second', None)
      assert line['group'] in ('train', 'validation')
  # Each evaluation once, also that of the step where it was stopped.
  assert a == b
  notes = [meta(run, step + 3)['notes'] for run in (model, tmp_path / 'whole')]
  assert notes[0] == notes[1] and notes[0]['best']


def test_no_time_left_and_ctrl_c_and_a_folder_that_goes(tmp_path):
  model = tmp_path / 'model'
  # A second is over when the first step has ended.
  stopped = start('train', *flags(tmp_path, 'model'), '--stop_after=00:00:01')
  said = stopped.communicate()[1]
  assert stopped.returncode == 75 and 'of --stop_after. Its che' in said, said
  first = interrupted.steps(model)
  assert len(first) == 1

  process = start('train', *flags(tmp_path, 'model'))
  wait_for_steps(process, model, first[0] + 2)
  process.send_signal(signal.SIGINT)
  said = process.communicate()[1]
  assert process.returncode == 130 and f'Resuming from step {first[0]}' in said
  assert interrupted.newest(model) > first[0]

  process = start('train', *flags(tmp_path, 'model'))
  wait_for_steps(process, model, interrupted.newest(model) + 2)
  # Nobody else gets in, and where the folder goes this one ends.
  with pytest.raises(UserError, match=f'process {process.pid} on .*, since 20'):
    train.main(flags(tmp_path, 'model'))
  shutil.move(model, tmp_path / 'moved')
  said = process.communicate()[1]
  assert process.returncode == 2, said
  assert f'error: {model} is gone at step ' in said
  assert not model.exists()
  assert 'Trained' not in said and 'Traceback' not in said
  assert interrupted.steps(tmp_path / 'moved')


def test_a_save_by_the_clock_and_then_a_notice_of_google(tmp_path, monkeypatch):
  model = tmp_path / 'model'
  values = {'preempted': 'FALSE', 'maintenance-event': 'NONE'}
  with metadata_server.serve(values) as host:
    monkeypatch.setenv('GCE_METADATA_HOST', host)
    process = start(
        'train', *flags(tmp_path, 'model'), '--cloud_notice',
        '--gin.CHECKPOINT_EVERY_HOURS=1e-4',
    )
    # By their count no step is saved before the hundred thousandth.
    while not interrupted.newest(model):
      assert process.poll() is None, process.communicate()
      time.sleep(0.01)
    first = interrupted.newest(model)
    values['preempted'] = 'TRUE'
    said = process.communicate()[1]
  assert process.returncode == 75, said
  step = interrupted.newest(model)
  assert f'Stopped at step {step} of {STEPS}: Google Cloud preempts' in said
  assert step >= first
  assert steps_taken(model) >= step


def test_a_second_signal_ends_a_step_that_hangs(tmp_path, monkeypatch):
  """At once, with nothing saved: nothing else could end it."""
  (tmp_path / 'hanging.py').write_text(
      'import pathlib, time\n'
      'import jax\n'
      'from dualenc_jax import losses\n'
      'class Hanging(losses.InBatchSoftmax):\n'
      '  def __call__(self, *args):\n'
      '    jax.debug.callback(self.hang)\n'
      '    return super().__call__(*args)\n'
      '  def hang(self):\n'
      f'    pathlib.Path({str(tmp_path / "hangs")!r}).touch()\n'
      '    time.sleep(3600)\n'
  )
  (tmp_path / 'hanging.gin').write_text(
      'from __gin__ import dynamic_registration\n'
      'import hanging\n'
      'LOSS = @hanging.Hanging()\n'
  )
  monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{two_hosts.ROOT}')
  model = tmp_path / 'model'
  process = interrupted.start(
      'train', *flags(tmp_path, 'model', '--gin_file=models/bag.gin'),
      f'--gin_file={tmp_path / "hanging.gin"}',
      devices=1, stderr=subprocess.PIPE,
  )
  try:
    while not (tmp_path / 'hangs').exists():
      assert process.poll() is None, process.communicate()
      time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    for line in process.stderr:
      if 'SIGTERM: the run stops at the end of a step' in line:
        break
    time.sleep(1.2)  # Sooner it would be the same notice.
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
  finally:
    process.kill()
  assert process.returncode == 130
  assert said == 'SIGINT again: stopping at once.\n'
  assert not interrupted.newest(model)


def test_what_the_last_step_had_left_is_saved_with_it(tmp_path, monkeypatch):
  given = [
      '--gin.KEEP_BEST=nDCG@10', '--gin.STEPS=2', '--gin.EVAL_EVERY=1',
      '--gin.optax.linear_schedule.transition_steps=2',
  ]
  train.main(flags(tmp_path, 'whole', *given))
  with monkeypatch.context() as patch:
    reasons = iter([None, None, 'SIGTERM'])
    patch.setattr(Stopping, 'reason', lambda *_: next(reasons))
    with pytest.raises(SystemExit) as stopped:
      train.main(flags(tmp_path, 'model', *given))
  assert stopped.value.code == 75
  assert meta(tmp_path / 'model')['notes']['left']
  for _ in range(2):  # Nothing is left for a third.
    train.main(flags(tmp_path, 'model', *given))
  assert meta(tmp_path / 'model')['notes'] == meta(tmp_path / 'whole')['notes']
  for run in ('model', 'whole'):  # Of steps 0 to 2, each once.
    assert len(tiny_run.logged(tmp_path / run, 'validation')) == 3


def test_two_hosts_stop_at_one_step(tmp_path):
  """One of them is told, the last, and both save the same step."""
  model = tmp_path / 'model'
  argv = flags(tmp_path, 'model')
  hosts = two_hosts.start('train', *argv)
  try:
    while steps_taken(model) < 3:
      assert all(host.poll() is None for host in hosts), hosts[0].communicate()
      time.sleep(0.05)
    hosts[1].send_signal(signal.SIGUSR1)
    said = [host.communicate(timeout=300)[0] for host in hosts]
  finally:
    for host in hosts:
      host.kill()
      host.wait()
  assert [host.returncode for host in hosts] == [75, 75], said
  (step,) = interrupted.steps(model)
  assert f'Stopped at step {step} of {STEPS}: another host was asked' in said[0]
  assert f'Stopped at step {step} of {STEPS}: SIGUSR1' in said[1]
  train.main([*argv, f'--gin.STEPS={step + 1}', '--allow_config_change'])
  assert interrupted.newest(model) == step + 1


def test_a_recipe_stops_with_its_stage(tmp_path):
  own = tmp_path / 'own.gin'
  own.write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax import recipes\n'
      'recipes.Recipe.stages = [@trained/recipes.Stage()]\n'
      'trained/recipes.Stage:\n'
      "  name = 'trained'\n"
      "  command = 'train'\n"
      '  flags = '
      + repr(_as_flags(flags(tmp_path, 'unused')))
      + "\n  outputs = {'model': '.'}\n"
  )
  work = tmp_path / 'work'
  process = start('recipe', f'--gin_file={own}', f'--work_dir={work}')
  wait_for_steps(process, work / 'trained')
  # As from a terminal, which tells the whole group.
  child = _child_of(process.pid)
  os.kill(child, signal.SIGTERM)
  process.send_signal(signal.SIGTERM)
  said = process.communicate()[1]
  assert process.returncode == 75, said
  assert len(interrupted.steps(work / 'trained')) == 1
  assert not json.loads((work / '.stages/trained.json').read_text())['done']


def _as_flags(argv):
  """Flags as a stage has them: a name, its value or values."""
  found = {'gin_file': []}
  for flag in argv:
    name, _, value = flag.removeprefix('--').partition('=')
    if name == 'gin_file':
      found[name].append(value)
    elif name != 'model_dir':
      found[name] = value
  return found | {'model_dir': '{folder}'}


def _child_of(pid):
  for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
    fields = stat.read_text().rpartition(')')[2].split()
    if int(fields[1]) == pid:
      return int(stat.parent.name)
  raise AssertionError('The recipe runs nothing.')
