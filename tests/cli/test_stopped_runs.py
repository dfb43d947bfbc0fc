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
import pytest
import tiny_run
import two_hosts

from dualenc_jax.cli import train
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.utils.errors import UserError

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


def wait_for_steps(process, model_dir, count=3):
  path = model_dir / 'metrics.jsonl'
  while not path.exists() or path.read_text().count('\n') < count:
    assert process.poll() is None, process.communicate()
    time.sleep(0.02)


@pytest.mark.nightly
def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path):
  model = tmp_path / 'model'
  # An evaluation is due wherever it stops: it is left to the next process.
  each = '--gin.KEEP_BEST=nDCG@10', '--gin.EVAL_EVERY=1'
  argv = flags(tmp_path, 'model', *each)
  process = start('train', *argv)
  wait_for_steps(process, model, 6)
  process.send_signal(signal.SIGTERM)
  said = process.communicate()[1]
  assert process.returncode == 75, said
  step = interrupted.newest(model)
  assert f'Stopped at step {step} of {STEPS}: SIGTERM.' in said
  assert 'step 2: ' in said and 'Traceback' not in said

  # The schedule is given, so that both may end soon.
  last = f'--gin.STEPS={step + 1}'
  train.main([*argv, last, '--allow_config_change'])
  train.main(flags(tmp_path, 'whole', *each, last))
  runs = model, tmp_path / 'whole'
  assert_bit_equal(*(saved(run, step + 1) for run in runs))
  a, b = map(tiny_run.logged, runs)
  for line in (*a, *b):
    line.pop('examples_per_second', None)
    assert line['group'] in ('train', 'validation')
  # Each evaluation once, also that of the step where it was stopped.
  assert a == b
  notes = [
      json.loads((run / f'checkpoints/{step + 1}/meta/metadata').read_text())
      for run in runs
  ]
  assert notes[0]['notes'] == notes[1]['notes'] and notes[0]['notes']['best']


@pytest.fixture
def at_first_save(monkeypatch):
  """Has something happen once the first checkpoint is written."""
  save, happened = Checkpoints.save, []

  def give(happen):
    def call(self, *args):
      save(self, *args)
      if not happened:
        self.wait()
        happened.append(happen())

    monkeypatch.setattr(Checkpoints, 'save', call)

  return give


def stopped(argv, status, capfd):
  """Trains until it is stopped, and returns what it says."""
  with pytest.raises(SystemExit) as end:
    train.main(argv)
  assert end.value.code == status
  said = capfd.readouterr().err
  model = pathlib.Path(argv[-1].partition('=')[2])
  step = interrupted.newest(model)
  assert f'Stopped at step {step} of {STEPS}: ' in said
  assert len(tiny_run.logged(model, 'train')) == step
  return said


@pytest.mark.parametrize(
    'number, status',
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGUSR1, 75, marks=pytest.mark.nightly),
    ],
)
def test_other_signals(tmp_path, capfd, at_first_save, number, status):
  at_first_save(lambda: os.kill(os.getpid(), number))
  argv = flags(tmp_path, 'model', '--gin.CHECKPOINT_EVERY=3')
  said = stopped(argv, status, capfd)
  assert f'{STEPS}: {signal.Signals(number).name}. Its checkpoint' in said


def test_a_folder_that_goes(tmp_path, monkeypatch, at_first_save):
  monkeypatch.setattr(train, '_LOOK_SECONDS', 0.0)
  model = tmp_path / 'model'
  at_first_save(lambda: shutil.move(model, tmp_path / 'moved'))
  with pytest.raises(UserError, match=f'{model} is gone'):
    train.main(flags(tmp_path, 'model', '--gin.CHECKPOINT_EVERY=2'))
  assert not model.exists()


HANGING = '''
import pathlib, time
import jax
from dualenc_jax import losses

class Hanging(losses.InBatchSoftmax):
  def __call__(self, *args):
    jax.debug.callback(self.hang)
    return super().__call__(*args)

  def hang(self):
    pathlib.Path('hangs').touch()
    time.sleep(3600)
'''


@pytest.mark.nightly
def test_a_second_signal_ends_a_step_that_hangs(tmp_path, monkeypatch):
  """At once, with nothing saved: nothing else could end it."""
  (tmp_path / 'hanging.py').write_text(HANGING)
  (tmp_path / 'hanging.gin').write_text(
      'from __gin__ import dynamic_registration\n'
      'import hanging\n'
      'LOSS = @hanging.Hanging()\n'
  )
  monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{two_hosts.ROOT}')
  monkeypatch.chdir(tmp_path)
  process = start(
      'train', *flags(tmp_path, 'model', '--gin_file=models/bag.gin'),
      '--gin_file=hanging.gin',
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
  assert not interrupted.newest(tmp_path / 'model')


@pytest.mark.slow
def test_a_recipe_stops_with_its_stage(tmp_path):
  given = {'gin_file': []}
  bag = '--gin.models.T5Encoder.num_layers=0'
  for flag in flags(tmp_path, 'unused', bag)[:-1]:
    name, _, value = flag.removeprefix('--').partition('=')
    if name == 'gin_file':
      given[name].append(value)
    else:
      given[name] = value
  own = tmp_path / 'own.gin'
  own.write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax.pipelines import recipes\n'
      "recipes.Recipe.stages = {'trained': @trained/recipes.Stage()}\n"
      'trained/recipes.Stage:\n'
      "  command = 'train'\n"
      f'  flags = {given}\n'
  )
  work = tmp_path / 'work'
  process = start('recipe', f'--gin_file={own}', f'--output_dir={work}')
  wait_for_steps(process, work / 'trained')
  # As from a terminal, which tells the whole group.
  os.killpg(process.pid, signal.SIGTERM)
  said = process.communicate()[1]
  assert process.returncode == 75, said
  assert len(interrupted.steps(work / 'trained')) == 1
  assert not json.loads((work / '.stages/trained.json').read_text())['done']
