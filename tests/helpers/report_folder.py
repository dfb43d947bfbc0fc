"""A model_dir for tests of the report, written by hand, and its page, read."""

from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
import json
import pathlib

from dualenc_jax.cli import report

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
PNG = b'\x89PNG\r\n\x1a\nnot really'
HIT = {
    'rank': 1, 'score': 0.875, 'id': 'd1', 'name': 'first.of.all',
    'text': 'One short text.', 'grade': 1,
}
FIGURE = {
    'name': 'tsne', 'title': 'A map', 'caption': 'Of 400 & more.',
    'png': 'tsne.png', 'csv': 'tsne.csv',
}
# HTML's own elements without an end tag.
VOID = {'br', 'hr', 'img', 'input', 'link', 'meta'}


def new(folder: pathlib.Path, more: str = '') -> pathlib.Path:
  """Writes a model_dir of a config alone; returns its path."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.gin').write_text(CONFIG + more)
  return folder


def write(folder: pathlib.Path) -> pathlib.Path:
  """Writes a whole model_dir of 40 steps; returns its path."""
  new(folder)
  checkpoint(folder, 40)
  curves(folder, *(train(i, loss=4.0 - 0.05 * i) for i in range(1, 41)))
  evaluation(folder, examples=[example(rank=1), example(rank=7)])
  analysis(folder)
  return folder


def write_json(path: pathlib.Path, value: object) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(value))


def checkpoint(folder: pathlib.Path, step: int, **more: object) -> None:
  """What the report reads of a checkpoint."""
  where = folder / 'checkpoints' / str(step)
  meta = {'step': step, 'data': {'task': 'my_pairs', 'source': 'f00d'}, **more}
  write_json(where / 'meta' / 'metadata', {**meta, 'config': CONFIG})


def curves(folder: pathlib.Path, *lines: Mapping[str, object]) -> None:
  """Appends lines to what training wrote of its numbers."""
  with open(folder / 'metrics.jsonl', 'a') as f:
    f.writelines(json.dumps(line) + '\n' for line in lines)


def train(step: int, **values: float) -> dict[str, object]:
  """A line of a training step."""
  return {'step': step, 'group': 'train', **values}


def evaluation(
    folder: pathlib.Path, name: str = 'pairs-test',
    examples: Sequence[Mapping] | None = (), **facts: object,
) -> None:
  """A result folder; `facts` replace those of its metrics.json."""
  where = folder / 'evaluation' / name
  content = {
      'metrics': {'P@1': 0.123456, 'MRR': 0.25, 'Recall@10': 0.5},
      'task': 'pairs', 'dataset': None, 'label': 'pairs', 'split': 'test',
      'queries': 1234, 'passages': 56789, 'checkpoint_step': 40,
      'git_revision': 'cafe1234',
      'command': "dualenc evaluate --model_dir='my model' --split=test",
  }
  write_json(where / 'metrics.json', content | facts)
  (where / 'examples.jsonl').unlink(missing_ok=True)
  if examples is not None:
    lines = [json.dumps(example) + '\n' for example in examples]
    (where / 'examples.jsonl').write_text(''.join(lines))


def example(rank: int | None, **fields: object) -> dict:
  """A query with one hit."""
  wanted = {'id': 'd9', 'name': 'wanted.one', 'text': 'The wanted text.'}
  return {
      'query_id': f'q{rank}', 'query': f'query of rank {rank}', 'rank': rank,
      'relevant': HIT if rank == 1 else wanted,
      'hits': [{**HIT, 'grade': 1 if rank == 1 else None}],
      **fields,
  }


def analysis(folder: pathlib.Path, **facts: object) -> None:
  """A folder of one figure."""
  where = folder / 'analysis' / 'pairs-test'
  content = {'label': 'pairs', 'numbers': {'separability': 0.8125}}
  write_json(where / 'analysis.json', content | {'figures': [FIGURE]} | facts)
  (where / 'tsne.png').write_bytes(PNG)


class Page(HTMLParser):
  """A page whose tags are checked to be balanced; its texts and links."""

  def __init__(self, html):
    super().__init__()
    self.html = html
    self.open, self.tags, self.words = [], [], {}
    self.feed(html)
    self.close()
    assert self.open == []

  def handle_startendtag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self.open.append((tag, dict(attrs).get('id')))

  def handle_endtag(self, tag):
    assert self.open and self.open.pop()[0] == tag, (tag, self.open)

  def handle_data(self, data):
    inside = [i for tag, i in self.open if tag == 'section'] or ['top']
    if all(tag != 'style' for tag, _ in self.open):
      self.words.setdefault(inside[0], []).append(data)

  def text(self, section):
    return ' '.join(' '.join(self.words.get(section, [])).split())

  def attributes(self, name):
    return [a[name] for _, a in self.tags if name in a]


def render(folder: pathlib.Path, *flags: str) -> Page:
  """The page of a model_dir."""
  report.main([f'--model_dir={folder}', *flags])
  return Page((folder / 'report.html').read_text('utf-8'))
