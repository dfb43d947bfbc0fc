"""Runs with a negative cache, by commands: filled, resumed, refused."""

import re
import resource
import sys

import interrupted
from interrupted import stopped_at
import numpy as np
import pytest
from run_files import assert_same, logged
import tiny_evaluation
import tiny_run

from dualenc_jax.commands import check, cli, train
from dualenc_jax.errors import UserError
from dualenc_jax.io import machine

SIZE = 64


def flags(folder, name, *more):
  return [
      *tiny_run.flags(
          folder, '--gin_file=losses/negative_cache.gin',
          f'--gin.CACHE_SIZE={SIZE}', '--gin.TEMPERATURE=0.1', *more,
      ),
      f'--model_dir={folder / name}',
  ]


@pytest.mark.slow
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, capsys):
  given = (
      '--gin.STEPS=7', '--gin.CHECKPOINT_EVERY=4', '--gin.DROPOUT_RATE=0.1',
      '--gin.REFRESH=0.1', '--gin.TOP_K=16', '--gin.MICRO_BATCH_SIZE=8',
      '--gin.TEMPERATURE=@losses.LearnableTemperature()',
  )
  train.main(flags(tmp_path, 'whole', *given))
  parts = flags(tmp_path, 'parts', *given)
  with stopped_at(4):
    train.main(parts)
  capsys.readouterr()
  assert cli.main(['train', *parts]) == 0
  said = capsys.readouterr().err
  assert 'Resuming from step 4' in said and 'Encoding' not in said
  for item in ('params', 'optimizer', 'memory'):
    one, other = (
        interrupted.item(tmp_path / name, 7, item)
        for name in ('whole', 'parts')
    )
    assert len(one) >= 5
    assert_same(one, other)
  before = interrupted.item(tmp_path / 'whole', 4, 'memory')
  after = interrupted.item(tmp_path / 'whole', 7, 'memory')
  assert any((before[name] != after[name]).any() for name in before)
  # It does not go on with another cache.
  other = [*parts, f'--gin.CACHE_SIZE={SIZE // 2}', '--allow_config_change']
  assert cli.main(['train', *other]) == 2
  said = capsys.readouterr().err.splitlines()[-1]
  assert 'embeddings (64, 128) -> (32, 128)' in said and 'CACHE_SIZE' in said


@pytest.mark.slow
def test_a_run_without_a_cache_does_not_go_on_with_one(tmp_path, capsys):
  tiny_evaluation.copy_model(tmp_path / 'model')
  changed = flags(tmp_path, 'model', '--gin.STEPS=3', '--allow_config_change')
  assert cli.main(['train', *changed]) == 2
  said = capsys.readouterr().err.splitlines()[-1]
  assert 'checkpoints/2 has no memory, such as a negative cache' in said
  assert (tmp_path / 'model/checkpoints/2').exists()


@pytest.mark.slow
def test_towers_learn_from_a_cache(tmp_path):
  train.main(
      flags(
          tmp_path, 'model', '--gin.SAMPLED=4', '--gin.TOP_K=16',
          '--gin.GROUPED=True', '--gin.STEPS=120', '--gin.LEARNING_RATE=3e-3',
          '--gin.DROPOUT_RATE=0.0',
      )
  )
  rows = logged(tmp_path / 'model')
  first = np.mean([row['accuracy'] for row in rows[:10]])
  last = np.mean([row['accuracy'] for row in rows[-10:]])
  assert last > 0.8 > 2 * first
  assert rows[-1]['loss'] < 0.3 * rows[0]['loss']
  # What was encoded at the start is not stale yet.
  assert 0 <= rows[0]['staleness'] < 1e-9 and rows[0]['cache_filled'] == 1
  # Every hundred steps.
  (used,) = logged(tmp_path / 'model', 'resources')
  assert used['step'] == 100 and 0 <= used['waiting_for_data'] <= 1
  if sys.platform == 'linux':
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    assert 100 < used['host_mib'] <= used['host_peak_mib'] < 1.01 * most


def test_what_cannot_be_cached(tmp_path, monkeypatch):
  for more, message in (
      ('LAYOUT=@data.Packed()', r'LAYOUT is Packed.*--gin.LAYOUT=@data.Padded'),
      ('CACHE_SIZE=8', 'CACHE_SIZE is 8; expected at least BATCH_SIZE, 16'),
      ('CACHE_SIZE=4096', 'is 4096, but the training data has .* different'),
  ):
    with pytest.raises(UserError, match=message):
      check.main([*flags(tmp_path, 'model', f'--gin.{more}'), '--no_compile'])
  monkeypatch.setattr(machine, 'device_memory', lambda: 4000)
  message = r'64 passages .*\(CACHE_SIZE\) take 0.0 MB on the device.* a small'
  with pytest.raises(UserError, match=message):
    check.main([*flags(tmp_path, 'model'), '--no_compile'])


@pytest.mark.slow
def test_check_says_what_the_cache_takes(tmp_path, capsys):
  argv = ['check', *flags(tmp_path, 'model', '--gin.CACHE_SIZE=8192')]
  tiny_run.write_pairs(tmp_path / 'train.jsonl', 3000)
  assert cli.main(argv) == 0
  said = ''.join(capsys.readouterr())
  # A slot has 128 float32, 16 uint16, two words, age and valid.
  size = 8192 * (4 * 128 + 2 * 16 + 8 + 4 + 1)
  assert re.search(rf'\n +memory +{size / 2**20:.1f}\n', said)
  assert f'take {size / 1e6:.1f} MB on the device' in said
