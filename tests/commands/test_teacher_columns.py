"""A teacher's scores from files through `dualenc train`."""

import json
import random

import pytest
import tiny_run

from dualenc_jax.commands import cli, train
from dualenc_jax.errors import UserError

COLUMNS = [
    '--gin.PASSAGE_COLUMN=pos', '--gin.NEGATIVES_COLUMN=neg',
    '--gin.POSITIVE_SCORES_COLUMN=pos_scores',
    '--gin.NEGATIVE_SCORES_COLUMN=neg_scores', '--gin.NUM_NEGATIVES=2',
]


def write(path, change=lambda row: row, count=96):
  """FlagEmbedding's form: lists of texts, and of their scores."""
  rng = random.Random(0)
  with path.open('w') as file:
    for _ in range(count):
      words = rng.sample(tiny_run.WORDS, 6)
      row = {
          'query': 'find ' + ' '.join(words[:2]),
          'pos': [' '.join(words)],
          'neg': [' '.join(rng.sample(tiny_run.WORDS, 6)) for _ in range(3)],
          'pos_scores': [rng.uniform(2, 5)],
          'neg_scores': [rng.uniform(-9, 2) for _ in range(3)],
      }
      file.write(json.dumps(change(row)) + '\n')
  return path


def flags(folder, *more, **change):
  path = write(folder / 'scored.jsonl', **change)
  return [
      'train', *tiny_run.flags(folder, *COLUMNS), f'--gin.TRAIN_FILE={path}',
      '--gin.VALIDATION_FILE=None', '--gin.TEST_FILE=None',
      f'--model_dir={folder / "model"}', *more,
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
    'more', ['--gin.MICRO_BATCH_SIZE=8', '--gin.LOSS_IMPLEMENTATION=ring']
)
def test_both_losses_train(tmp_path, more):
  cli.main(flags(tmp_path, '--gin_file=losses/distill.gin', more))
  found = tiny_run.logged(tmp_path / 'model')[-1]
  parts = found['InBatchSoftmax/loss'] + found['AtTemperature/loss']
  assert found['loss'] == pytest.approx(parts, rel=1e-5)
  assert found['AtTemperature/taught_fraction'] == 1
  assert found['AtTemperature/loss'] > 0
  margin = [
      '--gin_file=losses/margin_mse.gin', f'--model_dir={tmp_path / "other"}'
  ]
  cli.main(flags(tmp_path, more, *margin))


@pytest.mark.parametrize(
    'change, message',
    [
        (
            lambda row: row | {'neg_scores': row['neg_scores'][:2]},
            r"scored.jsonl:1: 'neg_scores' holds 2 scores for 3 texts",
        ),
        (
            lambda row: row | {'pos_scores': [float('nan')]},
            r"scored.jsonl:1.*(NaN|nan)",
        ),
        (
            lambda row: row | {'pos_scores': None},
            "scored.jsonl:1: 'pos_scores' is missing; expected a score",
        ),
        (
            lambda row: row | {'pos_scores': [1.0], 'neg_scores': [1.0] * 3},
            'the same score, 1: flat labels',
        ),
        (
            lambda row: row | {'pos_scores': [0.9], 'neg_scores': [0.1] * 3},
            'not logits. Set --gin.TEACHER=probabilities',
        ),
    ],
)
def test_bad_scores(tmp_path, change, message):
  argv = flags(tmp_path, '--gin_file=losses/distill.gin', change=change)
  with pytest.raises(UserError, match=message):
    train.main(argv[1:])
  assert not list((tmp_path / 'model').glob('checkpoints/*'))


def test_scores_of_a_cross_encoder(tmp_path):
  cross = '--gin_file=architectures/cross_encoder.gin'
  with pytest.raises(UserError, match='Ranking does not read them'):
    train.main(flags(tmp_path, cross)[1:])


def test_scores_without_a_loss_that_reads_them(tmp_path):
  with pytest.raises(UserError, match='does not read them. Use losses.Distill'):
    train.main(flags(tmp_path)[1:])


def test_a_loss_that_reads_them_without_scores(tmp_path):
  none = [
      '--gin.POSITIVE_SCORES_COLUMN=None', '--gin.NEGATIVE_SCORES_COLUMN=None'
  ]
  argv = flags(tmp_path, '--gin_file=losses/distill.gin', *none)
  with pytest.raises(UserError, match="learns from a teacher's scores"):
    train.main(argv[1:])
  with pytest.raises(UserError, match='expected both, or neither'):
    train.main([*argv[1:], '--gin.POSITIVE_SCORES_COLUMN=pos_scores'])
