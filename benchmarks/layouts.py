"""Times a training step by layout of the batch; see benchmarks/README.md.

One process compiles the step for each layout, then takes the layouts in turn,
on the same random texts of natural lengths.
"""

import argparse
import functools
import json
import statistics

import harness
from input import LAYOUTS
import jax
import numpy as np
import train_step as train_step_lib
import workload

from dualenc_jax import training
from dualenc_jax.commands import runtime
from dualenc_jax.data import batches as batches_lib, Ragged

EXAMPLES = 20_000


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
      '--loss', choices=train_step_lib.LOSSES, default='softmax'
  )
  parser.add_argument(
      '--layouts', nargs='+', choices=LAYOUTS, default=list(LAYOUTS)
  )
  parser.add_argument('--negatives', type=int, default=0, help='a query')
  workload.add_flags(parser)
  parser.set_defaults(batch=256, query_length=64, passage_length=256, steps=5)
  args = parser.parse_args()
  if jax.default_backend() == 'cpu':
    runtime.keep_freed_memory()  # As every command does.
  cache = SyntheticCache(args, workload.MODELS[args.model].vocab_size)
  runs = {name: Run(args, cache, LAYOUTS[name]) for name in args.layouts}
  for i in range(args.warmup + args.steps):
    for run in runs.values():
      run.step(i, timed=i >= args.warmup)
  results = {name: run.figures(args.batch) for name, run in runs.items()}
  print(
      f'{jax.devices()[0].device_kind}, {args.model}, {args.dtype}, batch'
      f' {args.batch}, means {args.mean_query:g} + {args.mean_passage:g},'
      f' limits {args.query_length} + {args.passage_length} tokens'
  )
  first = next(iter(results.values()))
  for name, f in results.items():
    times = f['examples_per_second'] / first['examples_per_second']
    print(
        f'  {name:10} {f["examples_per_second"]:8.1f} examples/s, {times:.2f}'
        f' times; {f["real_token_share"]:.0%} real tokens; compiled in'
        f' {f["compile_seconds"]:.0f} s, {f["planned_bytes"] / 1e6:,.0f} MB'
    )
  print(json.dumps({'flags': vars(args), 'layouts': results}))


class SyntheticCache:
  """What `Batches` reads of a cache: random tokens of natural lengths."""

  def __init__(self, args: argparse.Namespace, vocab_size: int):
    rng = np.random.default_rng(0)

    def rows(count, mean, limit):
      lengths = workload.natural_lengths(rng, count, mean, limit)
      offsets = np.concatenate([[0], np.cumsum(lengths)])
      tokens = rng.integers(3, vocab_size, offsets[-1])
      return Ragged(tokens.astype(np.uint16), offsets)

    passages = functools.partial(
        rows, mean=args.mean_passage, limit=args.passage_length
    )
    self.header = {
        'task': 'synthetic',
        'split': 'train',
        'query_length': args.query_length,
        'passage_length': args.passage_length,
    }
    self.query_tokens = rows(EXAMPLES, args.mean_query, args.query_length)
    self.passage_tokens = passages(EXAMPLES)
    self.negative_tokens = passages(EXAMPLES * args.negatives)
    self.negative_offsets = np.arange(EXAMPLES + 1) * args.negatives
    self.query_fingerprints = np.arange(EXAMPLES, dtype=np.uint64)
    self.passage_fingerprints = np.arange(EXAMPLES, dtype=np.uint64)
    self.negative_fingerprints = EXAMPLES + np.arange(
        EXAMPLES * args.negatives, dtype=np.uint64
    )

  def __len__(self) -> int:
    return EXAMPLES


class Run:
  """The compiled step of one layout, its state and its times."""

  def __init__(self, args, cache, layout):
    partitioner = training.Partitioner()
    devices = partitioner.mesh.shape['data']
    self._state, self._step = train_step_lib.make_step(
        args, partitioner, *train_step_lib.build(args)
    )
    self._batches = batches_lib.Batches(
        [cache],
        args.batch,
        seed=0,
        query_length=args.query_length,
        passage_length=args.passage_length,
        num_negatives=args.negatives,
        layout=layout,
        cells=devices * (args.batch // (args.micro_batch or args.batch)),
    )
    self._to_device = partitioner.to_device
    batch = self._to_device(self._batches(0))
    compiled = []
    self._compile_seconds = harness.seconds(
        lambda: compiled.append(self._step.lower(self._state, batch).compile())
    )
    self._planned = workload.planned_bytes(compiled[0].memory_analysis())
    self._times, self._shares = [], []

  def step(self, i: int, timed: bool) -> None:
    """A step on batch `i`, its gathering not timed."""
    host = self._batches(i)
    batch = self._to_device(host)

    def run():
      self._state, metrics = self._step(self._state, batch)
      jax.block_until_ready((self._state, metrics))

    seconds = harness.seconds(run)
    if timed:
      self._times.append(seconds)
      groups = [*host['queries'].groups, *host['passages'].groups]
      real = sum(int(group.lengths.sum()) for group in groups)
      self._shares.append(real / sum(group.tokens.size for group in groups))

  def figures(self, batch_size: int) -> dict[str, float]:
    """Medians."""
    return {
        'examples_per_second': batch_size / statistics.median(self._times),
        'step_seconds_min': min(self._times),
        'step_seconds_max': max(self._times),
        'real_token_share': statistics.mean(self._shares),
        'compile_seconds': self._compile_seconds,
        'planned_bytes': self._planned,
    }


if __name__ == '__main__':
  main()
