"""Measures the input: token caches and batches; see benchmarks/README.md.

  prepare   passages of a JSONL file, or made up, tokenised into a cache: time,
            disk, and how long to open it
  batches   pairs gathered from a cache into batches, on one core, by layout
  memory    resident memory over many batches
"""

import argparse
from collections.abc import Callable, Iterator
import itertools
import json
import os
import pathlib
import statistics
import tempfile
from typing import Any

import harness
import numpy as np
import workload

from dualenc_jax.data import (
  Batches,
  Cache,
  Packed,
  Padded,
  prepare as prepare_cache,
  Ragged,
  Tokenizer,
  Vocabulary,
)
from dualenc_jax.data.readers import Texts
from dualenc_jax.data.text.ragged import fingerprints, lengths_to_offsets

LAYOUTS = {
    'padded': Padded(),
    'packed': Packed(),
}
MS_MARCO = 8_841_823
_CHUNK = 10_000


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  whats = {run.__name__: run for run in (prepare, batches, memory)}
  add = parser.add_argument
  add('what', choices=whats, metavar='WHAT')
  add('--work_dir', help='for files; a temporary one by default')
  add('--query_length', type=int, default=64)
  add('--passage_length', type=int, default=256)
  add('--mean_query', type=float, default=8.0)
  add('--mean_passage', type=float, default=75.0)
  add('--vocabulary', default='python_code_8k', metavar='FILE')
  add('--rounds', type=int, default=5)
  add('--workers', type=int, default=-1, help='threads')
  add('--texts', metavar='FILE', help='of prepare: JSONL with a column text')
  add('--batch', type=int, default=512, help='pairs')
  add('--layouts', nargs='+', choices=LAYOUTS, default=list(LAYOUTS))
  add('--steps', type=int, help='batches of a round')
  add('--count', type=int, help='rows')
  args = parser.parse_args()
  args.steps = args.steps or (20_000 if args.what == 'memory' else 200)
  million = args.what == 'batches'
  args.count = args.count or (1_000_000 if million else 100_000)
  with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
    result = whats[args.what](args, pathlib.Path(folder))
  print(json.dumps({'flags': vars(args), **result}))


def prepare(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  """Passages a second from a JSONL file to a complete cache; disk; opening."""
  tokenizer = Tokenizer(
      Vocabulary(args.vocabulary), args.query_length, args.passage_length
  )
  tokenizer.encode_queries([''])  # Loads the vocabulary.
  path = folder / 'corpus.jsonl'
  with path.open('w') as stream:
    for number, text in enumerate(_texts(args)):
      stream.write(json.dumps({'_id': str(number), 'text': text}) + '\n')
  task = Texts(str(path))
  texts = [e['passage'] for e in task.examples('corpus')]
  rates = {'read': [], 'tokenise': [], 'prepare': [], 'open': []}
  for number in range(args.rounds):
    made = []
    for name, run in {
        'read': lambda: sum(1 for _ in task.examples('corpus')),
        'tokenise': lambda: tokenizer.encode_passages(texts, args.workers),
        'prepare': lambda: made.append(prepare_cache(
            task, 'corpus', tokenizer, folder / str(number),
            threads=args.workers,
        )),
        'open': lambda: Cache.open(made[0].folder),
    }.items():
      rates[name].append(len(texts) / harness.seconds(run))
  built = made[0]
  sizes = {p.name: p.stat().st_size for p in built.folder.iterdir()}
  for name, found in rates.items():
    print(f'{name:9} {_spread(found)} passages/s')
  rows = [
      f'{name} | {size / len(texts):.1f}'
      for name, size in sizes.items()
      if size > 8
  ]
  print(harness.table('file | bytes a row', rows))
  total, scale = sum(sizes.values()), MS_MARCO / len(texts)
  print(
      f'{len(texts):,} passages of {built.passage_tokens.lengths.mean():.1f}'
      f' tokens: {total / len(texts):.0f} bytes a row, of the source'
      f' {path.stat().st_size / len(texts):.0f}; {MS_MARCO:,} take'
      f' {total * scale / 1e9:.2f} GB,'
      f' {MS_MARCO / statistics.median(rates["prepare"]):.0f} s'
  )
  return {'rates': rates, 'sizes': sizes}


def batches(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  """Pairs a second into batches, on one core."""
  os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  runs = _batches(args, _SyntheticCache(args))
  rates = {name: [] for name in runs}
  steps = itertools.count()
  for _ in range(args.rounds):
    start = next(steps) * args.steps
    for name, run in runs.items():
      seconds = harness.seconds(
          lambda: [run(start + i) for i in range(args.steps)] and None
      )
      rates[name].append(args.batch * args.steps / seconds)
  for name, found in rates.items():
    share = _real_share(runs[name](0))
    print(f'{name:10} {_spread(found)} pairs/s, {share:.0%} real tokens')
  return {'rates': rates}


def memory(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  """Slope of the resident memory over batches, after a tenth of them."""
  slopes = {}
  for name, run in _batches(args, _SyntheticCache(args)).items():
    steps = np.arange(args.steps)
    # All there from the start: what is measured must not grow by measuring.
    sizes = {kind: np.ones(args.steps) for kind in _resident()}
    for step in steps:
      run(step)
      for kind, size in _resident().items():
        sizes[kind][step] = size
    warm = args.steps // 10
    slopes[name] = {}
    for kind, values in sizes.items():
      slope, _ = np.polyfit(steps[warm:], values[warm:], 1)
      slopes[name][kind] = slope
      print(
          f'{name:10} {kind:8} {slope:+8.2f} bytes a step; from'
          f' {values[warm] / 1e6:.1f} to {values[-1] / 1e6:.1f} MB, at most'
          f' {values[warm:].max() / 1e6:.1f}'
      )
  return {'slopes': slopes}


def _texts(args: argparse.Namespace) -> Iterator[str]:
  """Texts of the file, again and again, or else made up."""
  if args.texts:
    lines = pathlib.Path(args.texts).read_text('utf-8').splitlines()
    found = [json.loads(line)['text'] for line in lines]
    found = [text for text in found if text.strip()]
    yield from itertools.islice(itertools.cycle(found), args.count)
    return
  yield from workload.made_up_texts(
      Vocabulary(args.vocabulary).file,
      args.count,
      args.mean_passage,
      args.passage_length,
  )


class _SyntheticCache:
  """What `Batches` reads of a cache: random tokens of natural lengths."""

  def __init__(self, args: argparse.Namespace):
    rng = np.random.default_rng(0)

    def rows(count, mean, limit):
      lengths = workload.natural_lengths(rng, count, mean, limit)
      tokens = rng.integers(3, 32_000, lengths.sum(), np.uint16)
      return Ragged(tokens, lengths_to_offsets(lengths))

    self.header = {
        'task': 'synthetic',
        'split': 'train',
        'query_length': args.query_length,
        'passage_length': args.passage_length,
    }
    self.query_tokens = rows(args.count, args.mean_query, args.query_length)
    self.passage_tokens = rows(
        args.count, args.mean_passage, args.passage_length
    )
    self.negative_tokens = Ragged.from_rows([], np.uint16)
    self.negative_offsets = np.zeros(args.count + 1, np.int64)
    for side in ('query', 'passage', 'negative'):
      found = fingerprints(getattr(self, f'{side}_tokens'))
      setattr(self, f'{side}_fingerprints', found)

  def __len__(self) -> int:
    return len(self.query_tokens)


def _batches(
    args: argparse.Namespace, built: _SyntheticCache
) -> dict[str, Callable[[int], dict[str, Any]]]:
  """Batches of each layout, warmed up."""
  runs = {
      name: Batches(
          [built],
          args.batch,
          seed=0,
          query_length=args.query_length,
          passage_length=args.passage_length,
          layout=LAYOUTS[name],
      )
      for name in args.layouts
  }
  for run in runs.values():
    run(0)
  return runs


def _real_share(batch: dict[str, Any]) -> float:
  """Of the tokens of the rows."""
  sides = batch['queries'], batch['passages']
  real = sum(texts.lengths.sum() for texts in sides)
  return float(real / sum(texts.tokens.size for texts in sides))


def _resident() -> dict[str, int]:
  """Bytes of this process: all, and what is no file's; Linux only."""
  return {
      name: 1024 * harness.field('/proc/self/status', name)
      for name in ('VmRSS', 'RssAnon')
  }


def _spread(values: list[float]) -> str:
  return (
      f'{statistics.median(values):10,.0f} ({min(values):,.0f} to'
      f' {max(values):,.0f})'
  )


if __name__ == '__main__':
  main()
