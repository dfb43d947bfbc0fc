"""An objective that is none of the package's goes through the commands."""

import json
import re

import tiny_run

from dualenc_jax.cli import train

GIN = """
from __gin__ import dynamic_registration
import bag_of_words
import optax
OBJECTIVE = @bag_of_words.BagOfWords()
bag_of_words.BagOfWords.vocab_size = %VOCAB_SIZE
optax.linear_schedule.transition_steps = 12
"""


def flags(folder, model, *more):
  (folder / 'own.gin').write_text(GIN)
  return [
      # The encoder's, which this objective lacks.
      *(f for f in tiny_run.flags(folder) if not re.search('DTYPE|T5Enc', f)),
      '--gin_file=optimizers/adamw.gin',
      f'--gin_file={folder}/own.gin',
      '--gin.LEARNING_RATE=0.3',
      '--gin.STEPS=12',
      *more,
      f'--model_dir={folder / model}',
  ]


def losses(model_dir):
  rows = map(json.loads, (model_dir / 'metrics.jsonl').open())
  return [(row['step'], row['loss']) for row in rows]


def test_it_trains_saves_resumes_and_reports(tmp_path):
  train.main(flags(tmp_path, 'whole'))
  train.main(flags(tmp_path, 'parts', '--gin.STEPS=5'))
  train.main(flags(tmp_path, 'parts', '--allow_config_change'))
  found = losses(tmp_path / 'whole')
  assert [step for step, _ in found] == list(range(1, 13))
  assert found[-1][1] < 0.5 * found[0][1]
  assert losses(tmp_path / 'parts') == found
  assert (tmp_path / 'parts' / 'checkpoints' / '12').is_dir()
