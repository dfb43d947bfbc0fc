"""Measures the input: token caches and batches; see benchmarks/README.md.

  prepare   texts of a JSONL file, tokenised into a cache
  cache     a million made-up passages: disk, time, and how long to open it
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
import sentencepiece
import workload

from dualenc_jax.data import (
  Batches,
  Cache,
  Grouped,
  Packed,
  Padded,
  prepare as prepare_cache,
  Ragged,
  Tokenizer,
  Vocabulary,
)
from dualenc_jax.readers import Pairs, Texts
from dualenc_jax.text.ragged import fingerprints, lengths_to_offsets

LAYOUTS = {
    'padded': Padded(),
    'grouped 4': Grouped(4),
    'grouped 8': Grouped(8),
    'packed': Packed(),
}
MS_MARCO = 8_841_823
_CHUNK = 10_000


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  whats = {run.__name__: run for run in (prepare, cache, batches, memory)}
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
  million = args.what in ('cache', 'batches')
  args.count = args.count or (1_000_000 if million else 100_000)
  with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
    result = whats[args.what](args, pathlib.Path(folder))
  print(json.dumps({'flags': vars(args), **result}))


def prepare(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  """Passages a second from a JSONL file to a complete cache."""
  tokenizer = _tokenizer(args)
  tokenizer.encode_queries([''])  # Loads the vocabulary.
  path = folder / 'pairs.jsonl'
  count = _write_pairs(args, path)
  task = Pairs(train=str(path))
  texts = [e['passage'] for e in task.examples('train')]
  rates = {'read': [], 'tokenise': [], 'prepare': []}
  for number in range(args.rounds):
    cache_dir = folder / str(number)
    for name, run in {
        'read': lambda: sum(1 for _ in task.examples('train')),
        'tokenise': lambda: tokenizer.encode_passages(texts, args.workers),
        'prepare': lambda: prepare_cache(
            task, 'train', tokenizer, cache_dir, threads=args.workers
        ),
    }.items():
      rates[name].append(count / harness.seconds(run))
    _say(f'{rates["prepare"][-1]:,.0f} passages/s')
  (built,) = (folder / '0').glob('pairs-*')
  tokens = Cache.open(built).passage_tokens.lengths
  for name, found in rates.items():
    print(f'{name:9} {_spread(found)} passages/s')
  print(f'{count:,} passages of {tokens.mean():.1f} tokens, a query each')
  return {'rates': rates, 'mean_tokens': float(tokens.mean())}


def cache(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  """Disk, time and time to open of a cache of passages without queries."""
  path = folder / 'corpus.jsonl'
  with path.open('w') as stream:
    for number, text in enumerate(_texts(args, args.mean_passage, seed=0)):
      row = {'_id': str(number), 'text': text}
      stream.write(json.dumps(row) + '\n')
  tokenizer = _tokenizer(args)
  seconds = harness.seconds(
      lambda: prepare_cache(
          Texts(str(path)), 'corpus', tokenizer, folder, threads=args.workers
      )
  )
  (built,) = folder.glob('texts-*')
  opened = [
      harness.seconds(lambda: Cache.open(built)) for _ in range(args.rounds)
  ]
  header = Cache.open(built).header
  sizes = {name: size for name, (_, size) in header['files'].items()}
  total = sum(sizes.values())
  print('| file | bytes a row |\n|---|---|')
  for name, size in sizes.items():
    if size > 8:
      print(f'| {name} | {size / args.count:.1f} |')
  print(
      f'{args.count:,} passages: {total / args.count:.0f} bytes a row, of the'
      f' source {path.stat().st_size / args.count:.0f}; {seconds:.1f} s,'
      f' {args.count / seconds:,.0f} a second; opened in'
      f' {min(opened) * 1e3:.1f} ms'
  )
  scale = MS_MARCO / args.count
  print(
      f'{MS_MARCO:,} passages: {total * scale / 1e9:.2f} GB,'
      f' {seconds * scale:.0f} s'
  )
  return {'sizes': sizes, 'seconds': seconds, 'open_seconds': opened}


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


def _tokenizer(args: argparse.Namespace) -> Tokenizer:
  return Tokenizer(
      Vocabulary(args.vocabulary), args.query_length, args.passage_length
  )


def _write_pairs(args: argparse.Namespace, path: pathlib.Path) -> int:
  """Writes rows of query and passage; returns how many."""
  queries = _texts(args, args.mean_query, seed=1)
  passages = _texts(args, args.mean_passage, seed=0)
  if args.texts:
    lines = pathlib.Path(args.texts).read_text('utf-8').splitlines()
    texts = [json.loads(line)['text'] for line in lines]
    found = itertools.cycle([text for text in texts if text.strip()])
    passages = itertools.islice(found, args.count)
  with path.open('w') as stream:
    for query, passage in zip(queries, passages):
      stream.write(json.dumps({'query': query, 'passage': passage}) + '\n')
  return args.count


def _texts(args: argparse.Namespace, mean: float, seed: int) -> Iterator[str]:
  """Texts of words of the vocabulary, of natural lengths in tokens.

  The frequencies of the words follow Zipf's law.
  """
  processor = sentencepiece.SentencePieceProcessor()
  processor.load(str(Vocabulary(args.vocabulary).file))
  pieces = (
      processor.id_to_piece(i) for i in range(processor.get_piece_size())
  )
  words = [p[1:] for p in pieces if p[0] == '\u2581' and p[1:].isalpha()]
  weights = 1 / np.arange(10, 10 + len(words))
  rng = np.random.default_rng(seed)
  for start in range(0, args.count, _CHUNK):
    count = min(_CHUNK, args.count - start)
    lengths = workload.natural_lengths(rng, count, mean, args.passage_length)
    ends = np.cumsum(lengths - 1)  # And EOS.
    drawn = rng.choice(len(words), ends[-1], p=weights / weights.sum())
    for chosen in np.split(drawn, ends[:-1]):
      yield ' '.join([words[i] for i in chosen])


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
  groups = batch['queries'].groups + batch['passages'].groups
  real = sum(group.lengths.sum() for group in groups)
  return float(real / sum(group.tokens.size for group in groups))


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


def _say(text: str) -> None:
  print(f'{text}, load {os.getloadavg()[0]:.1f}', flush=True)


if __name__ == '__main__':
  main()
