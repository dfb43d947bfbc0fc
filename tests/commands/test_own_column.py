"""Columns through `dualenc train`: weights, and one of the user's own."""

import json

import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError

# A reader that yields a score of each candidate, and a loss that reads it.
MODULE = """
import dataclasses
import jax.numpy as jnp
from dualenc_jax import data, losses, readers

class Scored(readers.Pairs):
  extra_columns = (data.Column('scores', rank=1, per='candidate'),)

  def examples(self, split):
    for row in super().examples(split):
      yield row | {'scores': [1.0, *range(10, 10 + len(row['negatives']))]}

@dataclasses.dataclass(frozen=True)
class Mine(losses.InBatchSoftmax):

  def __call__(self, params, batch, similarity):
    value, metrics = super().__call__(params, batch, similarity)
    scores = batch.column('scores')
    spread = {f'score_{k}': jnp.mean(s) for k, s in enumerate(scores.T)}
    return value, metrics | spread
"""
GIN = """
from __gin__ import dynamic_registration
import my_columns

TASK = @my_columns.Scored()
my_columns.Scored:
  train = %TRAIN_FILE
  validation = %VALIDATION_FILE
  test = %TEST_FILE
LOSS = @my_columns.Mine()
"""


@pytest.fixture
def flags(tmp_path, monkeypatch):
  (tmp_path / 'my_columns.py').write_text(MODULE)
  (tmp_path / 'mine.gin').write_text(GIN)
  monkeypatch.syspath_prepend(tmp_path)
  return tiny_run.flags(
      tmp_path,
      f'--model_dir={tmp_path / "model"}',
      f'--gin.CACHE_DIR={tmp_path / "tokens"}',
      '--gin.STEPS=1',
  )


def metrics(model_dir):
  """Those of the first step."""
  lines = (model_dir / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return next(row for row in rows if row['group'] == 'train')


def test_a_column_of_ones_own(flags, tmp_path):
  mine = f'--gin_file={tmp_path / "mine.gin"}'
  train.main([*flags, mine, '--gin.NUM_NEGATIVES=2'])
  found = metrics(tmp_path / 'model')
  assert found['score_0'] == 1
  assert found['score_1'] + found['score_2'] == 21


def test_a_loss_of_a_column_that_the_task_lacks(flags, tmp_path):
  mine = f'--gin_file={tmp_path / "mine.gin"}'
  with pytest.raises(UserError, match="'scores'.*extra_columns"):
    train.main([*flags, mine, '--gin_file=tasks/pairs.gin'])


@pytest.mark.slow
def test_weights_change_what_is_learnt(flags, tmp_path):
  rows = (tmp_path / 'train.jsonl').read_text().splitlines()
  values = np.random.default_rng(0).integers(0, 9, len(rows)).tolist()
  with (tmp_path / 'train.jsonl').open('w') as file:
    for row, value in zip(rows, values):
      file.write(json.dumps(json.loads(row) | {'w': value}) + '\n')
  losses = []
  for number, more in enumerate([[], ['--gin.WEIGHT_COLUMN=w']]):
    model = f'--model_dir={tmp_path / str(number)}'
    train.main([*flags, model, *more])
    losses.append(metrics(tmp_path / str(number))['loss'])
  assert losses[0] != losses[1]
