"""A model_dir for tests of the report: all of its parts, written by hand."""

from collections.abc import Mapping, Sequence
import json
import pathlib

CONFIG = """\
# Macros:
STEPS = 40
BATCH_SIZE = 128
INITIAL_CHECKPOINT_PATH = \\
    '/a/long/path'
LOSS = @losses.SamToNe()
TASK = @readers.Pairs()
TEMPERATURE = 0.05
readers.Pairs.train = 'a <b> & c.jsonl'
"""
# The smallest things that are told apart when they are embedded.
PNG = b'\x89PNG\r\n\x1a\nnot really'
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"/>'
HIT = {
    'rank': 1,
    'score': 0.875,
    'id': 'd1',
    'name': 'first.of.all',
    'text': 'One short text.',
    'grade': 1,
}


def write(folder: pathlib.Path) -> pathlib.Path:
  """Writes a whole model_dir of 40 steps; returns its path."""
  folder.mkdir()
  (folder / 'config.gin').write_text(CONFIG)
  checkpoint(folder, 40)
  curves(folder, *(train(i, loss=4.0 - 0.05 * i) for i in range(1, 41)))
  evaluation(folder, examples=[example(rank=1), example(rank=7)])
  analysis(folder)
  return folder


def write_json(path: pathlib.Path, value: object) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(value))


def checkpoint(folder: pathlib.Path, step: int, **more: object) -> None:
  """What the report reads of a checkpoint; saved on 2 January 2026, 03:04."""
  where = folder / 'checkpoints' / str(step)
  meta = {'step': step, 'data': {'task': 'my_pairs', 'source': 'f00d'}, **more}
  write_json(where / 'meta' / 'metadata', {**meta, 'config': CONFIG})
  time = {'commit_timestamp_nsecs': 1767323040_000_000_000}
  write_json(where / '_CHECKPOINT_METADATA', time)


def curves(folder: pathlib.Path, *lines: Mapping[str, object]) -> None:
  """Appends lines to what training wrote of its numbers."""
  with open(folder / 'metrics.jsonl', 'a') as f:
    f.writelines(json.dumps(line) + '\n' for line in lines)


def train(step: int, **values: float) -> dict[str, object]:
  """A line of a training step."""
  return {'step': step, 'group': 'train', **values}


def evaluation(
    folder: pathlib.Path,
    name: str = 'pairs-test',
    examples: Sequence[Mapping] = (),
    **facts: object,
) -> None:
  """A result folder; `facts` replace those of its metrics.json."""
  where = folder / 'evaluation' / name
  write_json(
      where / 'metrics.json',
      {
          'metrics': {'P@1': 0.123456, 'MRR': 0.25, 'Recall@10': 0.5},
          'task': 'pairs',
          'dataset': None,
          'label': 'pairs',
          'split': 'test',
          'queries': 1234,
          'passages': 56789,
          'checkpoint_step': 40,
          'git_revision': 'cafe1234',
          'command': "dualenc evaluate --model_dir='my model' --split=test",
          **facts,
      },
  )
  lines = [json.dumps(example) + '\n' for example in examples]
  (where / 'examples.jsonl').write_text(''.join(lines))


def example(rank: int | None, **fields: object) -> dict:
  """A query with one hit."""
  hit = {**HIT, 'grade': 1 if rank == 1 else None}
  relevant = {'id': 'd9', 'name': 'wanted.one', 'text': 'The wanted text.'}
  return {
      'query_id': f'q{rank}',
      'query': f'query of rank {rank}',
      'rank': rank,
      'relevant': HIT if rank == 1 else relevant,
      'hits': [hit],
      **fields,
  }


def analysis(folder: pathlib.Path, **facts: object) -> None:
  """A folder of figures: one as SVG and PNG."""
  where = folder / 'analysis' / 'pairs-test'
  figure = {
      'name': 'tsne',
      'title': 'A map',
      'caption': 'Of 400 & more.',
      'png': 'tsne.png',
      'svg': 'tsne.svg',
      'csv': 'tsne.csv',
  }
  content = {'label': 'pairs', 'numbers': {'separability': 0.8125}}
  write_json(where / 'analysis.json', {**content, 'figures': [figure], **facts})
  (where / 'tsne.png').write_bytes(PNG)
  (where / 'tsne.svg').write_bytes(SVG)
