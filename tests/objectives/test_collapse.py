"""The watch over towers that give all texts one embedding."""

import json
import types

import jax
import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import train
from dualenc_jax.objectives.encoding import effective_ranks
from dualenc_jax.training import monitors


def unit(x):
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def of(x):
  found = jax.device_get(effective_ranks(x, x[:1]))
  assert found['passage_rank'] == pytest.approx(1, abs=1e-5)
  return found['query_rank']


def test_against_singular_values():
  rng = np.random.default_rng(0)
  for x in (
      unit(rng.normal(size=(200, 32))),
      unit(rng.normal(size=(300, 16)) + 2),
  ):
    rank = of(x)
    powers = np.linalg.svd(x.astype(np.float64), compute_uv=False) ** 2
    assert rank == pytest.approx(powers.sum() ** 2 / np.sum(powers**2), 1e-5)


@pytest.mark.parametrize(
    'loss, query, passage, chance, tower',
    [
        (4.17, 9.3, 1.04, 4.174, 'passage'),
        (4.17, 1.04, 9.3, 4.174, 'query'),
        (4.17, 9.3, 8.1, 4.174, None),
        # As measured where towers collapse (benchmarks/RESULTS.md).
        (4.34, 1.98, 1.003, 4.174, 'passage'),
        # What learns, and a loss whose chance nobody knows.
        (4.1, 1.04, 1.04, 4.174, None),
        (4.17, 1.04, 1.04, None, None),
    ],
)
def test_which_tower(loss, query, passage, chance, tower):
  metrics = {'loss': loss, 'query_rank': query, 'passage_rank': passage}
  assert monitors._collapsed_tower(metrics, chance) == tower
  assert monitors._collapsed_tower({'loss': loss}, chance) is None


def test_a_run_that_collapses_is_warned_of(
    tmp_path, monkeypatch, capfd
):
  """Texts of one word, more or less often: to a bag nearly one text."""
  rows = [
      {'query': 'same ' * i + 'same', 'passage': 'same ' * i + 'same'}
      for i in range(90)
  ]
  (tmp_path / 'same.jsonl').write_text(
      ''.join(json.dumps(row) + '\n' for row in rows)
  )
  monkeypatch.setattr(monitors, '_WARM_UP', 3)
  flags = tiny_run.flags(
      tmp_path, f'--gin.TRAIN_FILE={tmp_path / "same.jsonl"}',
      '--gin.VALIDATION_FILE=None', '--gin.TEST_FILE=None', '--gin.STEPS=5',
      '--gin.models.T5Encoder.num_layers=0', '--gin.PASSAGE_LENGTH=128',
      '--gin.QUERY_LENGTH=128', '--gin.DROPOUT_RATE=0.0',
      '--gin.TEMPERATURE=1.0',
  )
  train.main([*flags, f'--model_dir={tmp_path / "model"}'])
  said = capfd.readouterr().err
  assert 'the query tower gives all texts nearly one embedding' in said
  assert said.count('WARNING: step 3: ') == 1
  assert 'for 3 steps in a row' in said
  lines = (tmp_path / 'model/metrics.jsonl').read_text().splitlines()
  ranks = [json.loads(line)['query_rank'] for line in lines]
  assert len(ranks) == 5 and max(ranks) < 2


@pytest.mark.parametrize('late, told', [(3.9, False), (4.3, True)])
def test_a_loss_above_chance_after_the_warm_up_is_told(late, told):
  """By the second half of the first fifty steps."""
  said = []
  call = monitors.warn_above_chance(4.174, said.append).call
  for step in range(1, 61):
    loss = 9.0 if step <= 25 or step > 50 else late
    call(types.SimpleNamespace(step=step, metrics={'loss': loss}))
  assert len(said) == told
  if told:
    assert 'after 50 steps the loss is 4.30, above the 4.17 of a' in said[0]


@pytest.mark.parametrize('loss, told', [(0.0, True), (1e-7, False)])
def test_first_steps_without_a_loss_are_told(loss, told):
  """As of a file of copies of one pair, of which none is a negative."""
  said = []
  call = monitors.warn_without_loss(said.append).call
  for step in range(1, 31):
    now = loss if step == 10 else 0.0
    call(types.SimpleNamespace(step=step, metrics={'loss': now}))
  assert len(said) == told
  if told:
    assert 'step 10: the loss of each of the first 10 steps is 0' in said[0]
