"""A run that was stopped goes on as if it had not been."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from interrupted import assert_bit_equal, saved
import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError

STEPS = 60


def flags(folder: pathlib.Path, model: str, *more: str) -> list[str]:
  return [
      *tiny_run.flags(
          folder,
          f'--gin.STEPS={STEPS}',
          '--gin.CHECKPOINT_EVERY=5',
          '--gin.EVAL_EVERY=0',
          *more,
      ),
      f'--model_dir={folder / model}',
  ]


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
  whole = flags(tmp_path, 'whole')
  train.main(whole)

  killed = flags(tmp_path, 'killed')
  process = subprocess.Popen(
      [sys.executable, '-m', 'dualenc_jax', 'train', *killed],
      stderr=subprocess.DEVNULL,
  )
  checkpoints = tmp_path / 'killed' / 'checkpoints'
  deadline = time.monotonic() + 120
  while not (checkpoints / '5').exists() and time.monotonic() < deadline:
    time.sleep(0.01)
  os.kill(process.pid, signal.SIGKILL)
  process.wait()
  assert (checkpoints / '5').exists()
  assert not (checkpoints / str(STEPS)).exists(), 'killed too late to matter'

  train.main(killed)
  assert_bit_equal(
      saved(tmp_path / 'whole', STEPS), saved(tmp_path / 'killed', STEPS)
  )


@pytest.mark.slow
def test_two_stops_and_a_damaged_checkpoint_change_nothing(tmp_path, capsys):
  train.main(flags(tmp_path, 'whole', '--gin.STEPS=12'))
  for steps in (5, 10):
    # The schedule is that of the whole run; only the loop ends early.
    _train_until(flags(tmp_path, 'parts', '--gin.STEPS=12'), steps)
  newest = tmp_path / 'parts' / 'checkpoints' / '10' / 'params'
  for path in newest.rglob('*'):
    if path.is_file():
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  train.main(flags(tmp_path, 'parts', '--gin.STEPS=12'))
  said = capsys.readouterr().err
  assert 'Checkpoint 10' in said and 'broken_checkpoints' in said
  assert (tmp_path / 'parts' / 'broken_checkpoints' / '10').is_dir()
  assert_bit_equal(
      saved(tmp_path / 'whole', 12), saved(tmp_path / 'parts', 12)
  )
  meta = json.loads(
      next((tmp_path / 'parts/checkpoints/12/meta').glob('*')).read_text()
  )
  assert meta['step'] == 12 and meta['data']['next_step'] == 12
  assert 'Experiment.steps' in meta['config']


def _train_until(argv: list[str], step: int) -> None:
  """Trains, and stops by an error right after `step` was saved."""
  from dualenc_jax.training.checkpoints import Checkpoints

  save = Checkpoints.save

  def save_then_stop(self, state, at, meta):
    save(self, state, at, meta)
    if at == step:
      self.wait()
      raise KeyboardInterrupt

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Checkpoints, 'save', save_then_stop)
    with pytest.raises(KeyboardInterrupt):
      train.main(argv)


@pytest.mark.slow
def test_a_finished_run_does_nothing_more(tmp_path):
  argv = tiny_run.flags(tmp_path)
  argv = [*argv, f'--model_dir={tmp_path / "model"}']
  train.main(argv)
  before = saved(tmp_path / 'model', 2) | {}
  train.main(argv)
  after = saved(tmp_path / 'model', 2)
  for name in before:
    np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.slow
def test_another_config_is_refused_unless_told(tmp_path):
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*tiny_run.flags(tmp_path), model])
  changed = tiny_run.flags(tmp_path, '--gin.STEPS=3', '--gin.SEED=5')
  with pytest.raises(UserError) as error:
    train.main([*changed, model])
  message = str(error.value)
  assert 'SEED: 0 -> 5' in message and 'STEPS: 2 -> 3' in message
  assert '--allow_config_change' in message
  old = (tmp_path / 'model' / 'config.gin').read_text()
  train.main([*changed, model, '--allow_config_change'])
  assert (tmp_path / 'model' / 'checkpoints' / '3').is_dir()
  assert (tmp_path / 'model' / 'config.1.gin').read_text() == old


@pytest.mark.slow
def test_other_training_data_is_refused_unless_told(tmp_path):
  flags = tiny_run.flags(tmp_path)
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*flags, model])
  tiny_run.write_pairs(tmp_path / 'train.jsonl', 96, seed=7)
  with pytest.raises(UserError, match='training data is not .* source: '):
    train.main([*flags, model])
  train.main([*flags, model, '--allow_config_change'])


def test_a_run_that_never_trained_does_not_stand_in_the_way(tmp_path):
  flags = tiny_run.flags(tmp_path)
  model = f'--model_dir={tmp_path / "model"}'
  with (tmp_path / 'train.jsonl').open('a') as f:
    f.write('not JSON\n')
  with pytest.raises(UserError, match=r'train\.jsonl:97'):
    train.main([*flags, model])
  train.main([*flags, model, '--gin.STRICT=False'])
  assert (tmp_path / 'model' / 'checkpoints' / '2').is_dir()


@pytest.mark.slow
@pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_a_full_disk_under_the_events_stops_the_run(tmp_path, monkeypatch):
  """The writer thread dies of the error; the run must not wait for it."""
  from tensorboardX import record_writer

  write = record_writer.RecordWriter.write

  def full(*args):
    if threading.current_thread() is not threading.main_thread():
      raise OSError(28, 'No space left on device')
    return write(*args)

  flags = tiny_run.flags(tmp_path, '--gin.STEPS=40')
  monkeypatch.setattr(record_writer.RecordWriter, 'write', full)
  with pytest.raises(UserError, match='the events cannot be written'):
    train.main([*flags, f'--model_dir={tmp_path / "model"}'])


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_named(tmp_path):
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*tiny_run.flags(tmp_path), model])
  config = (tmp_path / 'model' / 'config.gin').read_text()
  wider = tiny_run.flags(tmp_path, '--gin.models.Projection.features=64')
  with pytest.raises(UserError) as error:
    train.main([*wider, model, '--allow_config_change'])
  assert 'projection/kernel: (128, 128) in the checkpoint' in str(error.value)
  assert '(128, 64) in this model' in str(error.value)
  assert (tmp_path / 'model' / 'config.gin').read_text() == config
  assert (tmp_path / 'model' / 'checkpoints' / '2').is_dir()


@pytest.mark.slow
def test_an_initial_checkpoint_gives_parameters_and_a_fresh_start(tmp_path):
  first = tiny_run.flags(tmp_path)
  train.main([*first, f'--model_dir={tmp_path / "first"}'])
  second = tiny_run.flags(
      tmp_path,
      f'--gin.INITIAL_CHECKPOINT_PATH={tmp_path / "first"}',
      '--gin.STEPS=1',
      '--gin.LEARNING_RATE=0.0',
  )
  train.main([*second, f'--model_dir={tmp_path / "second"}'])
  a, b = saved(tmp_path / 'first', 2), saved(tmp_path / 'second', 1)
  for name in a:
    if name.startswith('params'):
      np.testing.assert_array_equal(a[name], b[name])


def test_a_model_dir_that_cannot_be_written(tmp_path):
  file = tmp_path / 'file'
  file.write_text('')
  with pytest.raises(UserError, match='cannot be written: .* MODEL_DIR'):
    train.main([*tiny_run.flags(tmp_path), f'--model_dir={file}/model'])


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_and_keeps_what_is_good(tmp_path):
  model = f'--model_dir={tmp_path / "model"}'
  argv = tiny_run.flags(
      tmp_path,
      '--gin_file=optimizers/adamw.gin',
      '--gin.LEARNING_RATE=1e30',
      '--gin.STEPS=20',
      '--gin.CHECKPOINT_EVERY=1',
  )
  with pytest.raises(UserError, match=r'Step \d+: the loss.* not finite'):
    train.main([*argv, model])
  steps = [int(p.name) for p in (tmp_path / 'model' / 'checkpoints').iterdir()]
  assert steps and max(steps) < 20
  for array in saved(tmp_path / 'model', min(steps)).values():
    assert np.isfinite(array).all()


def test_two_runs_in_one_folder(tmp_path):
  """The second is told; nothing of the first changes."""
  small = [
      *tiny_run.flags(tmp_path), f'--model_dir={tmp_path / "model"}'
  ]
  train.main(small)
  before = {
      path: path.read_bytes()
      for path in (tmp_path / 'model').rglob('*')
      if path.is_file()
  }
  holder = subprocess.Popen(
      [
          sys.executable,
          '-c',
          'import filelock, sys\n'
          'with filelock.FileLock(sys.argv[1]):\n'
          '  print("held", flush=True)\n'
          '  sys.stdin.read()\n',
          str(tmp_path / 'model' / '.lock'),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
  )
  try:
    assert holder.stdout.readline() == 'held\n'
    with pytest.raises(UserError, match='Another process trains in .*/model'):
      train.main(small)
  finally:
    holder.communicate()
  assert before == {path: path.read_bytes() for path in before}
  train.main(small)
