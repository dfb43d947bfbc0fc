"""Datasets, columns and losses of the user's own, which nothing registers."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.cli import check, data_check, evaluate, train
from dualenc_jax.utils.errors import UserError

MODULE = '''
import dataclasses
import jax.numpy as jnp
from dualenc_jax import data, losses


class Mine(data.Dataset):
  """The least that a dataset needs, and a column."""
  extra_columns = (data.Column('scores', rank=1, per='candidate'),)

  def __init__(self, name='word'):
    self.name = name

  def splits(self):
    return ('train', 'validation')

  def examples(self, split):
    for i in range(32):
      yield {
          'query': f'{split} {self.name} {i}', 'passage': f'array {i}',
          'negatives': [f'map {i}', f'key {i}'], 'scores': [1.0, 10, 11],
      }


class Plain:
  """No dataset."""


@dataclasses.dataclass(frozen=True)
class Pull(losses.Loss):
  """The least that a loss needs; it reads the column."""
  strength: float = 1.0

  def __call__(self, params, batch, similarity):
    distance = jnp.sum((batch.query - batch.passage) ** 2)
    value = self.strength * distance
    scores = batch.column('scores')
    spread = {f'score_{k}': jnp.mean(s) for k, s in enumerate(scores.T)}
    return value, {'loss': value, 'distance': distance, **spread}
'''
OWN = """
from __gin__ import dynamic_registration
import my_own
TASK = @my_own.Mine()
LOSS = @my_own.Pull()
VOCABULARY = 'python_code_8k'
"""


@pytest.fixture
def flags(tmp_path, monkeypatch):
  (tmp_path / 'my_own.py').write_text(MODULE)
  (tmp_path / 'own.gin').write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  return tiny_run.flags(tmp_path, f'--gin.CACHE_DIR={tmp_path / "tokens"}')


def test_a_dataset_and_a_loss_are_checked_trained_and_evaluated(
    tmp_path, flags, capsys
):
  own = f'--gin_file={tmp_path / "own.gin"}'
  data_check.main([own, f'--output_dir={tmp_path / "report"}'])
  report = json.loads((tmp_path / 'report' / 'report.json').read_text())
  assert [split['pairs'] for split in report['splits']] == [32, 32]
  given = [
      '--gin_file=runs/finetune.gin', own, *tiny_run.small_flags(),
      '--gin.VOCAB_SIZE=8064', f'--gin.CACHE_DIR={tmp_path / "tokens"}',
      '--gin.my_own.Pull.strength=2.0', '--gin.NUM_NEGATIVES=2',
      '--gin.STEPS=1',
  ]
  check.main([*given, '--no_compile'])
  assert 'Task Mine: splits train, validation.' in capsys.readouterr().out
  model = f'--model_dir={tmp_path / "model"}'
  train.main([*given, model])
  found = tiny_run.logged(tmp_path / 'model', 'train')[0]
  assert found['distance'] > 0
  assert found['loss'] == pytest.approx(2 * found['distance'], rel=1e-5)
  assert found['score_0'] == 1
  assert found['score_1'] + found['score_2'] == 21
  evaluate.main([model, '--no_baselines'])
  assert 'Mine, split validation:\n' in capsys.readouterr().out
  with pytest.raises(UserError, match='Plain.*expected a dataset'):
    check.main([*given, '--gin.TASK=@my_own.Plain()'])
  with pytest.raises(UserError, match="'scores'.*extra_columns"):
    check.main([*flags, own, '--gin_file=tasks/pairs.gin'])


@pytest.mark.nightly
def test_the_losses_of_the_page(tmp_path, monkeypatch):
  """As a user runs them: beside the module, by the program itself."""
  page = pathlib.Path(__file__).parents[2] / 'docs/losses.md'
  blocks = re.findall(r'```\w*\n(.*?)```', page.read_text(), re.S)
  module, = (text for text in blocks if 'class Decoupled(' in text)
  gin, = (text for text in blocks if '\nimport my_losses\n' in text)
  (tmp_path / 'my_losses.py').write_text(module)
  (tmp_path / 'my_loss.gin').write_text(gin)
  flags = tiny_run.flags(tmp_path, '--gin_file=my_loss.gin', '--gin.STEPS=1')
  program = pathlib.Path(sys.executable).with_name('dualenc')
  subprocess.run(
      [program, 'train', *flags, '--model_dir=one'], cwd=tmp_path, check=True
  )
  one, = tiny_run.logged(tmp_path / 'one', 'train')
  # Of 16 pairs all others are negatives.
  assert one['negatives'] == 15

  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  half = '--gin.my_losses.Decoupled.weight=0.5', '--model_dir=half'
  train.main([*flags, *half])
  found, = tiny_run.logged(tmp_path / 'half', 'train')
  assert found['loss'] == pytest.approx(one['loss'] / 2, rel=1e-5)
  (tmp_path / 'my_loss.gin').write_text(gin.replace('Decoupled', 'OwnTower'))
  # The other negatives are SamToNe's.
  train.main([*flags, '--model_dir=own'])
  train.main([*flags, '--gin_file=losses/samtone.gin', '--model_dir=samtone'])
  own, samtone = (
      tiny_run.logged(tmp_path / name, 'train')[0]['loss']
      for name in ('own', 'samtone')
  )
  assert own == samtone != one['loss']


@pytest.mark.nightly
def test_weights_change_what_is_learnt(tmp_path):
  shared = tiny_evaluation.shared_model()
  rows = shared.with_name('train.jsonl').read_text().splitlines()
  values = np.random.default_rng(0).integers(0, 9, len(rows)).tolist()
  with (tmp_path / 'weighted.jsonl').open('w') as file:
    for row, value in zip(rows, values):
      file.write(json.dumps(json.loads(row) | {'w': value}) + '\n')
  train.main([
      *tiny_evaluation.training_flags('--gin.WEIGHT_COLUMN=w'),
      f'--gin.TRAIN_FILE={tmp_path / "weighted.jsonl"}',
      f'--model_dir={tmp_path / "model"}',
  ])
  one, two = (
      tiny_run.logged(run, 'train')[0]['loss']
      for run in (shared, tmp_path / 'model')
  )
  assert one != two
