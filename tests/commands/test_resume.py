"""A run that was stopped goes on as if it had not been."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import event_files
from interrupted import assert_bit_equal, saved
import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError
from dualenc_jax.io import writer
from dualenc_jax.training.checkpoints import Checkpoints

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
def test_another_mesh_and_remat_need_no_leave(tmp_path, capfd):
  """What they leave alone are the numbers, to rounding."""
  steps = '--gin.STEPS=12'
  train.main(flags(tmp_path, 'whole', steps))
  _train_until(flags(tmp_path, 'parts', steps), 5)
  capfd.readouterr()
  train.main(
      flags(
          tmp_path,
          'parts',
          steps,
          '--gin.MODEL_PARALLEL=2',
          '--gin_file=partitioning/fsdp.gin',
          '--gin.models.T5Encoder.remat=True',
          '--gin.CHECKPOINT_EVERY=4',
          f'--gin.CACHE_DIR={tmp_path / "elsewhere"}',
          '--gin.run.Experiment.eval_batch_size=8',
          '--gin.run.Experiment.keep_checkpoints=2',
      )
  )
  said = capfd.readouterr().err
  assert 'Resuming from step 5' in said and 'data 4 x model 2' in said
  assert 'MODEL_PARALLEL: 1 -> 2' in said and 'remat: False -> True' in said
  assert 'An epoch is 6 batches of 16; of its 96 examples none is' in said
  a, b = (saved(tmp_path / name, 12) for name in ('whole', 'parts'))
  assert a.keys() == b.keys()
  for name, array in a.items():
    if name.startswith('params'):
      error = np.abs(array - b[name]).max() / np.abs(array).max()
      assert error < 1e-4, name


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
  rate = '--gin.LEARNING_RATE=0.5'
  changed = tiny_run.flags(tmp_path, '--gin.STEPS=3', rate)
  with pytest.raises(UserError) as error:
    train.main([*changed, model])
  message = str(error.value)
  assert 'LEARNING_RATE: 0.001 -> 0.5' in message
  assert 'STEPS: 2 -> 3' in message
  assert '--allow_config_change' in message
  old = (tmp_path / 'model' / 'config.gin').read_text()
  with pytest.raises(UserError, match='of another config'):
    train.main([*changed, model, '--allow_data_change'])
  train.main([*changed, model, '--allow_config_change'])
  assert (tmp_path / 'model' / 'checkpoints' / '3').is_dir()
  assert (tmp_path / 'model' / 'config.1.gin').read_text() == old


def test_another_loss_is_told_before_what_it_is_made_of(tmp_path):
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  flags = tiny_run.flags(tmp_path, '--gin.NUM_NEGATIVES=1')
  with pytest.raises(UserError) as error:
    train.main(
        [*flags, '--gin_file=losses/distill.gin', f'--model_dir={model}']
    )
  found = str(error.value).partition('of another config. ')[2].split('; ')
  assert found[0] == 'LOSS: @losses.InBatchSoftmax() -> @losses.Sum()'
  assert found[1] == 'NUM_NEGATIVES: 0 -> 1'
  assert 'DISTILL_TEMPERATURE: not set -> 0.05' in found
  assert found[-1].startswith('and ')


@pytest.mark.slow
def test_other_training_data_is_refused_unless_told(tmp_path):
  flags = tiny_run.flags(tmp_path)
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*flags, model])
  tiny_run.write_pairs(tmp_path / 'train.jsonl', 96, seed=7)
  refused = 'training data is not .* source: .*give --allow_data_change'
  for allowed in ([], ['--allow_config_change']):
    with pytest.raises(UserError, match=refused):
      train.main([*flags, model, *allowed])
  train.main([*flags, model, '--allow_data_change'])


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
def test_a_full_disk_under_the_events_stops_the_run(tmp_path, monkeypatch):
  from tensorboardX import record_writer

  write, written = record_writer.RecordWriter.write, []

  def full(*args):
    written.append(args)
    if len(written) > 60:
      raise OSError(28, 'No space left on device')
    return write(*args)

  flags = tiny_run.flags(tmp_path, '--gin.STEPS=40', '--gin.CHECKPOINT_EVERY=2')
  monkeypatch.setattr(record_writer.RecordWriter, 'write', full)
  with pytest.raises(UserError, match='the events cannot be written'):
    train.main([*flags, f'--model_dir={tmp_path / "model"}'])
  assert (tmp_path / 'model' / 'checkpoints' / '2').is_dir()


@pytest.mark.slow
def test_what_led_to_a_checkpoint_is_on_disk_before_it(tmp_path, monkeypatch):
  """Or the events of a killed run would lack steps that no other run takes."""
  save, found = Checkpoints.save, {}

  def look(self, state, step, meta):
    scalars, _ = event_files.read(tmp_path / 'model')
    found[step] = [at for at, tag, _ in scalars if tag == 'train/loss']
    save(self, state, step, meta)

  monkeypatch.setattr(Checkpoints, 'save', look)
  train.main(flags(tmp_path, 'model', '--gin.STEPS=12'))
  assert found == {s: list(range(1, s + 1)) for s in (5, 10, 12)}


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


def test_a_busy_folder_is_told_before_the_plan(tmp_path, capsys):
  flags = *tiny_run.flags(tmp_path), f'--model_dir={tmp_path / "model"}'
  (tmp_path / 'model').mkdir()
  with writer.alone(tmp_path / 'model', 'trains', 'another'):
    with pytest.raises(UserError, match=f'model: process {os.getpid()} on'):
      train.main(flags)
    assert 'Parameters:' not in capsys.readouterr().err
    # What only who takes the lock can tell is left to that.
    (tmp_path / 'model' / '.writer.json').write_text('x')
    with pytest.raises(UserError, match='Another process trains'):
      train.main(flags)
    assert 'Parameters:' in capsys.readouterr().err
