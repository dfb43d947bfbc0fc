"""A teacher's scores from files through `dualenc train`."""

import json
import random

import pytest
import tiny_run

from dualenc_jax.cli import check, train
from dualenc_jax.utils.errors import UserError

COLUMNS = [
    '--gin.PASSAGE_COLUMN=pos', '--gin.NEGATIVES_COLUMN=neg',
    '--gin.POSITIVE_SCORES_COLUMN=pos_scores',
    '--gin.NEGATIVE_SCORES_COLUMN=neg_scores', '--gin.NUM_NEGATIVES=2',
]


def write(path, change=lambda row: row):
  """FlagEmbedding's form: lists of texts, and of their scores."""
  rng = random.Random(0)
  with path.open('w') as file:
    for _ in range(96):
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
      *tiny_run.flags(folder, *COLUMNS), f'--gin.TRAIN_FILE={path}',
      '--gin.VALIDATION_FILE=None', '--gin.TEST_FILE=None',
      f'--model_dir={folder / "model"}', *more,
  ]


@pytest.mark.nightly
def test_losses_that_read_them(tmp_path):
  train.main(flags(
      tmp_path, '--gin_file=losses/distill.gin', '--gin.MICRO_BATCH_SIZE=8'
  ))
  found = tiny_run.logged(tmp_path / 'model')[-1]
  parts = found['InBatchSoftmax/loss'] + found['AtTemperature/loss']
  assert found['loss'] == pytest.approx(parts, rel=1e-5)
  assert found['AtTemperature/taught_fraction'] == 1
  assert found['AtTemperature/loss'] > 0


@pytest.mark.parametrize(
    'scores, message',
    [
        ([[3.0], [1.0, 2.0]], r":1: 'neg_scores' holds 2 scores for 3 texts"),
        ([[1.0], [1.0] * 3], 'the same score, 1: flat labels'),
        ([[0.9], [0.1] * 3], 'not logits. Set --gin.TEACHER=probabilities'),
    ],
)
def test_bad_scores(tmp_path, scores, message):
  given = dict(zip(('pos_scores', 'neg_scores'), scores))
  with pytest.raises(UserError, match=message):
    train.main(flags(
        tmp_path, '--gin_file=losses/distill.gin', change=lambda x: x | given
    ))
  assert not list((tmp_path / 'model').glob('checkpoints/*'))


NONE = [
    '--gin.POSITIVE_SCORES_COLUMN=None', '--gin.NEGATIVE_SCORES_COLUMN=None'
]
DISTILL = '--gin_file=losses/distill.gin'


@pytest.mark.parametrize(
    'more, message',
    [
        ([], 'does not read them. Use losses.Distill'),
        ([DISTILL, *NONE], "learns from a teacher's scores"),
        ([DISTILL, *NONE[1:]], 'expected both, or neither'),
    ],
)
def test_scores_and_losses_that_do_not_belong_together(tmp_path, more, message):
  for command, how in ((train, []), (check, ['--no_compile'])):
    with pytest.raises(UserError, match=message):
      command.main([*flags(tmp_path, *more), *how])


def test_the_check_finds_a_file_that_lacks_them(tmp_path):
  """Whether the layout looks at the examples or not."""

  def without(row):
    return {n: x for n, x in row.items() if n != 'neg_scores'}

  given = flags(tmp_path, DISTILL, '--no_compile', change=without)
  for layout in ('Packed', 'Padded'):
    with pytest.raises(UserError, match="scored.jsonl:1: 'neg_scores' is miss"):
      check.main([*given, f'--gin.LAYOUT=@data.{layout}()'])
  # Without hard negatives the teacher has nothing to compare.
  with pytest.raises(UserError, match='Set NUM_NEGATIVES to 1 or more'):
    check.main(
        [*flags(tmp_path, DISTILL), '--no_compile', '--gin.NUM_NEGATIVES=0']
    )
