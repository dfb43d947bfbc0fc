"""A run that was stopped goes on as if it had not been."""

import json
import os
import time

import event_files
import interrupted
from interrupted import assert_bit_equal, saved
import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.cli import train
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.utils import folder_lock
from dualenc_jax.utils.errors import UserError


@pytest.fixture
def again(tmp_path):
  """Trains on in a copy of the shared model, of two steps, by its flags."""
  model = tiny_evaluation.copy_model(tmp_path / 'model')

  def run(*more):
    given = tiny_evaluation.training_flags(*more)
    train.main([*given, f'--model_dir={model}'])

  return run


@pytest.mark.slow
def test_killed_and_damaged_and_resumed_equals_uninterrupted(
    tmp_path, capsys, monkeypatch
):
  killed, whole = tmp_path / 'killed', tmp_path / 'whole'
  flags = [
      *tiny_run.flags(tmp_path), '--gin.STEPS=80', '--gin.CHECKPOINT_EVERY=20'
  ]
  process = interrupted.start('train', *flags, f'--model_dir={killed}')
  while len(interrupted.steps(killed)) < 2:
    assert process.poll() is None
    time.sleep(0.01)
  process.kill()
  process.wait()
  newest = interrupted.newest(killed)
  assert newest < 80, 'killed too late'
  # Nor does half a checkpoint do harm: the one before it is gone on from.
  for path in (killed / f'checkpoints/{newest}/params').rglob('*'):
    if path.is_file():
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  train.main([*flags, f'--model_dir={killed}'])
  said = capsys.readouterr().err
  assert f'Checkpoint {newest}' in said and 'broken_checkpoints' in said
  assert (killed / f'broken_checkpoints/{newest}').is_dir()

  save, reported = Checkpoints.save, {}

  def look(self, state, step, meta):
    scalars, _ = event_files.read(whole)
    reported[step] = [at for at, tag, _ in scalars if tag == 'train/loss']
    save(self, state, step, meta)

  monkeypatch.setattr(Checkpoints, 'save', look)
  train.main([*flags, f'--model_dir={whole}'])
  # What led to a checkpoint is on disk before it, or the events of a killed run
  # would lack steps that no other run takes.
  assert reported == {s: [*range(1, s + 1)] for s in (20, 40, 60, 80)}
  assert_bit_equal(saved(whole, 80), saved(killed, 80))
  losses = [
      {line['step']: line['loss'] for line in tiny_run.logged(run, 'train')}
      for run in (whole, killed)
  ]
  assert losses[0] == losses[1] and len(losses[0]) == 80


def test_a_finished_run_does_nothing_more(again, tmp_path):
  again()
  shared = tiny_evaluation.shared_model()
  assert_bit_equal(saved(shared, 2), saved(tmp_path / 'model', 2))
  meta = json.loads(
      (tmp_path / 'model/checkpoints/2/meta/metadata').read_text()
  )
  assert meta['step'] == 2 and meta['data']['next_step'] == 2
  assert 'Experiment.steps' in meta['config']


def test_what_leaves_the_numbers_alone_needs_no_leave(again, tmp_path):
  """That they stay is in test_two_hosts.py."""
  again(
      '--gin.LAYOUT=@data.Packed()',
      '--gin.LOSS_IMPLEMENTATION=ring', '--gin.MICRO_BATCH_SIZE=8',
      '--gin_file=partitioning/fsdp.gin', '--gin.models.T5Encoder.remat=True',
      f'--gin.CACHE_DIR={tmp_path / "elsewhere"}',
      '--gin.training.Experiment.eval_batch_size=8', '--gin.CHECKPOINT_EVERY=5',
      '--gin.training.Experiment.keep_checkpoints=2',
      "--gin.PROMPTS={'a': 'b'}",
  )


def test_another_config_is_refused_unless_allowed(again, tmp_path):
  model = tmp_path / 'model'
  old = (model / 'config.gin').read_text()
  changed = '--gin.STEPS=3', '--gin.LEARNING_RATE=0.5'
  with pytest.raises(UserError, match='has another config') as error:
    again(*changed, '--allow_data_change')
  message = str(error.value)
  assert 'LEARNING_RATE: 0.001 -> 0.5' in message
  assert 'STEPS: 2 -> 3' in message and '--allow_config_change' in message
  # What the checkpoint cannot be is refused whatever is allowed.
  with pytest.raises(UserError) as error:
    again('--gin.models.Projection.features=64', '--allow_config_change')
  assert 'projection/kernel: (128, 128) in the checkpoint' in str(error.value)
  assert (model / 'config.gin').read_text() == old
  again(*changed, '--allow_config_change')
  assert (model / 'checkpoints' / '3').is_dir()
  assert (model / 'config.1.gin').read_text() == old


def test_other_data_is_refused_unless_it_is_allowed(again, tmp_path):
  other = tiny_run.write_pairs(tmp_path / 'train.jsonl', 96, seed=7)
  given = f'--gin.TRAIN_FILE={other}', '--allow_config_change'
  refused = 'training data of .* source: .*give --allow_data_change'
  with pytest.raises(UserError, match=refused):
    again(*given)
  again(*given, '--allow_data_change')
  with other.open('a') as f:
    f.write('not JSON\n')
  fresh = tmp_path / 'fresh'
  with pytest.raises(UserError, match=r'train\.jsonl:97'):
    train.main([
        *tiny_evaluation.training_flags(*given), f'--model_dir={fresh}'
    ])
  # A run that has not begun leaves no config to be compared with.
  assert not (fresh / 'config.gin').exists()


@pytest.mark.nightly
def test_a_full_disk_under_the_events_stops_the_run(tmp_path, monkeypatch):
  from tensorboardX import record_writer

  write, written = record_writer.RecordWriter.write, []

  def full(*args):
    written.append(args)
    if len(written) > 60:
      raise OSError(28, 'No space left on device')
    return write(*args)

  monkeypatch.setattr(record_writer.RecordWriter, 'write', full)
  with pytest.raises(UserError, match='the events cannot be written'):
    train.main([
        *tiny_run.flags(tmp_path), '--gin.STEPS=40', '--gin.CHECKPOINT_EVERY=2',
        f'--model_dir={tmp_path / "model"}',
    ])
  assert (tmp_path / 'model' / 'checkpoints' / '2').is_dir()


def test_two_runs_in_one_folder(again, tmp_path, capsys):
  """The second is told, before the plan; nothing of the first changes."""
  model = tmp_path / 'model'
  with folder_lock.lock_folder(model, 'trains', 'another'):
    files = [path for path in model.rglob('*') if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    capsys.readouterr()
    with pytest.raises(UserError, match=f'model: process {os.getpid()} on'):
      again()
    assert 'Parameters:' not in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in before}


def test_an_initial_checkpoint_gives_parameters_and_a_fresh_start(tmp_path):
  first = tiny_evaluation.shared_model()
  train.main([
      *tiny_run.flags(tmp_path), f'--gin.INITIAL_CHECKPOINT_PATH={first}',
      '--gin.STEPS=1', '--gin.LEARNING_RATE=0.0',
      f'--model_dir={tmp_path / "second"}',
  ])
  a, b = saved(first, 2), saved(tmp_path / 'second', 1)
  for name in a:
    if name.startswith('params'):
      np.testing.assert_array_equal(a[name], b[name])
