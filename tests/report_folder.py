"""A model_dir for tests of the report: all of its parts, written by hand."""

from collections.abc import Mapping, Sequence
import json
import pathlib

import tensorboardX

CONFIG = """\
from dualenc_jax import losses

# Macros:
STEPS = 40
BATCH_SIZE = 128
DTYPE = 'float32'
FREEZE = ()
LOSS = @losses.SamToNe()
MODEL = @models.DualEncoder()
TASK = @pairs/data.Task()
losses.SamToNe.both_towers = True
losses.SamToNe.temperature = 0.05
models.DualEncoder.passage_token_embedder = @passage/models.TokenEmbedder()
models.DualEncoder.passage_encoder = @passage/models.T5Encoder()
models.DualEncoder.passage_projection = None
pairs/data.Task.options = {'file': \\
    'a <b> & c.jsonl'}
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
  losses = [4.0 - 0.05 * step for step in range(1, 41)]
  events(folder, {'train/loss': dict(enumerate(losses, 1))})
  evaluation(folder, examples=[example(rank=1), example(rank=7)])
  analysis(folder)
  return folder


def write_json(path: pathlib.Path, value: object) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(value))


def checkpoint(folder: pathlib.Path, step: int) -> None:
  """What the report reads of a checkpoint; saved on 2 January 2026, 03:04."""
  where = folder / 'checkpoints' / str(step)
  meta = {'step': step, 'data': {'task': 'my_pairs', 'source': 'f00d'}}
  write_json(where / 'meta' / 'metadata', {**meta, 'config': CONFIG})
  time = {'commit_timestamp_nsecs': 1767323040_000_000_000}
  write_json(where / '_CHECKPOINT_METADATA', time)


def events(
    folder: pathlib.Path,
    curves: Mapping[str, Mapping[int, float]],
    start: int = 0,
    suffix: str = '',
) -> pathlib.Path:
  """One event file, as of a run that starts after step `start`; its path."""
  before = set(folder.glob('events/*'))
  with tensorboardX.SummaryWriter(
      str(folder / 'events'), purge_step=start + 1, filename_suffix=suffix
  ) as writer:
    for tag, values in curves.items():
      for step, value in values.items():
        writer.add_scalar(tag, value, step)
  (path,) = set(folder.glob('events/*')) - before
  return path


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
