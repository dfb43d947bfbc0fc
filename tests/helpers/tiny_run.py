"""A run small enough for tests: pairs of words, the tiny model, two steps."""

from collections.abc import Sequence
import json
import pathlib
import random

WORDS = (
    'array byte cache date error file graph hash index json key list map node'
    ' object path queue row string table url value word xml year zone'
).split()


def write_pairs(path: pathlib.Path, count: int, seed: int = 0) -> pathlib.Path:
  """Writes pairs whose query is two of the passage's six words."""
  rng = random.Random(seed)
  with path.open('w') as f:
    for _ in range(count):
      words = rng.sample(WORDS, 6)
      row = {
          'query': 'find ' + ' '.join(words[:2]),
          'passage': ' '.join(words),
          'negatives': [' '.join(rng.sample(WORDS, 6)) for _ in range(2)],
      }
      f.write(json.dumps(row) + '\n')
  return path


def pairs_flags(folder: pathlib.Path) -> list[str]:
  """Flags of the `pairs` task over files made in `folder`."""
  train = write_pairs(folder / 'train.jsonl', 96)
  test = write_pairs(folder / 'test.jsonl', 24, seed=1)
  return [
      '--gin_file=tasks/pairs.gin', f'--gin.TRAIN_FILE={train}',
      f'--gin.VALIDATION_FILE={test}', f'--gin.TEST_FILE={test}',
      '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064',
  ]


def small_flags(steps: int = 2) -> list[str]:
  """Flags that shrink any run to one layer of the tiny model and a few steps.

  A second layer would take half as long again, mostly to compile.
  """
  return [
      '--gin_file=models/tiny.gin', '--gin.models.T5Encoder.num_layers=1',
      f'--gin.STEPS={steps}', '--gin.BATCH_SIZE=16', '--gin.QUERY_LENGTH=8',
      '--gin.PASSAGE_LENGTH=16', '--gin.EVAL_EVERY=0', '--gin.DTYPE=float32',
  ]


def logged(model_dir: pathlib.Path, group: str | None = None) -> list[dict]:
  """The lines of metrics.jsonl, of a group or all."""
  lines = (model_dir / 'metrics.jsonl').read_text().splitlines()
  return [
      line for line in map(json.loads, lines) if group in (None, line['group'])
  ]


def flags(
    folder: pathlib.Path, *more: str, run: str = 'runs/finetune.gin'
) -> Sequence[str]:
  """Flags of a whole tiny run over files in `folder`; later ones win."""
  return [f'--gin_file={run}', *pairs_flags(folder), *small_flags(), *more]


def gemma_flags(folder: pathlib.Path, *more: str) -> Sequence[str]:
  """Those of `flags` for the tiny model of the Gemma family."""
  return [
      flag.replace('models/tiny', 'models/gemma/tiny').replace('T5', 'Gemma')
      for flag in flags(folder, *more)
  ]
