"""Runs with a negative cache, by commands: filled, resumed, refused."""


import interrupted
from interrupted import stopped_at
import numpy as np
import pytest
from run_files import assert_same, logged
import tiny_run

from dualenc_jax.cli import check, main as cli, train
from dualenc_jax.utils.errors import UserError

SIZE = 64


def flags(folder, name, *more):
  return [
      *tiny_run.flags(
          folder, '--gin_file=objectives/negative_cache.gin',
          f'--gin.CACHE_SIZE={SIZE}', '--gin.TEMPERATURE=0.1', *more,
      ),
      f'--model_dir={folder / name}',
  ]


@pytest.mark.nightly
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
    assert len(one) >= 4
    assert_same(one, other)
  before = interrupted.item(tmp_path / 'whole', 4, 'memory')
  after = interrupted.item(tmp_path / 'whole', 7, 'memory')
  assert any((before[name] != after[name]).any() for name in before)
  # It does not go on with another cache.
  other = [*parts, f'--gin.CACHE_SIZE={SIZE // 2}', '--allow_config_change']
  assert cli.main(['train', *other]) == 2
  said = capsys.readouterr().err.splitlines()[-1]
  assert 'embeddings: (64, 128) in the checkpoint, (32, 128) in' in said


@pytest.mark.nightly
def test_towers_learn_from_a_cache(tmp_path):
  train.main(
      flags(
          tmp_path, 'model', '--gin.SAMPLED=4', '--gin.TOP_K=16',
          '--gin.STEPS=120', '--gin.LEARNING_RATE=3e-3',
          '--gin.DROPOUT_RATE=0.0',
      )
  )
  rows = logged(tmp_path / 'model')
  first = np.mean([row['accuracy'] for row in rows[:10]])
  last = np.mean([row['accuracy'] for row in rows[-10:]])
  assert last > 0.8 > 2 * first
  assert rows[-1]['loss'] < 0.3 * rows[0]['loss']
  # What was encoded at the start is not stale yet.
  assert 0 <= rows[0]['staleness'] < 1e-9


def test_what_cannot_be_cached(tmp_path):
  for more, message in (
      ('LAYOUT=@data.Packed()', r'LAYOUT is Packed.*--gin.LAYOUT=@data.Padded'),
      ('CACHE_SIZE=8', 'CACHE_SIZE is 8; expected at least BATCH_SIZE, 16'),
      ('CACHE_SIZE=4096', 'is 4096, but the training data has .* different'),
  ):
    with pytest.raises(UserError, match=message):
      check.main([*flags(tmp_path, 'model', f'--gin.{more}'), '--no_compile'])
