"""The work that both sides of the training-step benchmark do.

NumPy only: our environment has no sentence-transformers, the peer's no JAX.
B pairs, L tokens (Lq and Lp by tower), E model dim, D embedding dim.
"""

import argparse
from collections.abc import Callable
import dataclasses
import os
import resource
import statistics
import time
from typing import Any

import numpy as np

PAD = 0
# Natural text is near log-normal in tokens; MS MARCO's queries and passages
# both have about this deviation of the logarithm.
SIGMA = 0.4
NUM_BATCHES = 8
DTYPES = ('float32', 'bfloat16')
# The in-batch softmax scores queries against passages, and the reverse;
# SamToNe scores queries against queries, too.
NUM_BLOCKS = {'softmax': 2, 'samtone': 3}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """A T5 encoder and its projection, shared by both towers."""

  num_layers: int
  features: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  gated: bool
  embedding_dim: int
  vocab_size: int


# Those of gin/models, T5.1.1, and a tiny one: gin is not needed here.
VOCAB_SIZE = 32128
MODELS = {
    'tiny': Sizes(2, 128, 4, 32, 256, True, 128, VOCAB_SIZE),
    'mini': Sizes(4, 256, 4, 64, 512, True, 256, VOCAB_SIZE),
    'small': Sizes(8, 512, 6, 64, 1024, True, 768, VOCAB_SIZE),
    'base': Sizes(12, 768, 12, 64, 2048, True, 768, VOCAB_SIZE),
    'large': Sizes(24, 1024, 16, 64, 2816, True, 768, VOCAB_SIZE),
}


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of each timed step.

  Attributes:
    wall: by the clock.
    cores: of all cores together that this process spent.
    elsewhere: of all cores together that the rest of the machine spent.
  """

  wall: list[float]
  cores: list[float]
  elsewhere: list[float]


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that describe the work."""
  parser.add_argument('--batch', type=int, default=64, help='pairs a step')
  parser.add_argument(
      '--micro_batch',
      type=int,
      help='gradient caching: pairs encoded at once; by default all',
  )
  parser.add_argument('--query_length', type=int, default=32)
  parser.add_argument('--passage_length', type=int, default=128)
  parser.add_argument('--mean_query', type=float, default=8.0)
  parser.add_argument('--mean_passage', type=float, default=75.0)
  parser.add_argument('--dtype', choices=DTYPES, default='float32')
  parser.add_argument('--dropout_rate', type=float, default=0.0)
  parser.add_argument(
      '--optimizer', choices=('adafactor', 'adamw'), default='adafactor'
  )
  parser.add_argument('--steps', type=int, default=10, help='timed steps')
  parser.add_argument('--warmup', type=int, default=3, help='untimed steps')


def token_batches(
    args: argparse.Namespace, vocab_size: int
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Random tokens of natural lengths, the same on both sides.

  Returns:
    `NUM_BATCHES` pairs of int32 [B, Lq] and [B, Lp], padded with `PAD`.
  """
  rng = np.random.default_rng(0)

  def rows(mean, limit):
    lengths = natural_lengths(rng, args.batch, mean, limit)
    tokens = rng.integers(3, vocab_size, (args.batch, limit), np.int32)
    return np.where(np.arange(limit) < lengths[:, None], tokens, PAD)

  return [
      (
          rows(args.mean_query, args.query_length),
          rows(args.mean_passage, args.passage_length),
      )
      for _ in range(NUM_BATCHES)
  ]


def natural_lengths(
    rng: np.random.Generator, count: int, mean: float, limit: int
) -> np.ndarray:
  """Log-normal numbers of tokens, 3 to `limit`: int64 [count]."""
  drawn = rng.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, count)
  return np.clip(np.rint(drawn), 3, limit).astype(np.int64)


def lengths(tokens: np.ndarray) -> np.ndarray:
  """Real tokens of each row, int [B]."""
  return np.sum(tokens != PAD, axis=1)


def step_flops(
    sizes: Sizes,
    rows: np.ndarray,
    batch: int,
    num_blocks: int,
) -> float:
  """Floating-point operations of the matrix products of one training step.

  Forward, with H*K the joined heads, F the MLP's hidden axis and G = 2 for
  the gated MLP, else 1, a tower does for a row of L tokens

    layers * (2 L (4 E H K + (G + 1) E F) + 4 L^2 H K) + 2 E D,

  and the loss 2 B^2 D for each block of similarities. The backward pass is
  two such products for each one. Norms, softmax, lookup of the embeddings,
  dropout, optimizer and whatever is recomputed do not count.

  Args:
    sizes: the model.
    rows: tokens of each row of the two towers, padding counted or not.
    batch: B, pairs.
    num_blocks: blocks of similarities in the loss.
  """
  joined = sizes.num_heads * sizes.head_dim
  mlp = (2 + sizes.gated) * sizes.features * sizes.mlp_dim
  token = 2 * (4 * sizes.features * joined + mlp)
  rows = np.asarray(rows, np.float64)
  layer = np.sum(token * rows + 4 * joined * rows**2)
  projection = 2 * sizes.features * sizes.embedding_dim * 2 * batch
  loss = num_blocks * 2 * batch**2 * sizes.embedding_dim
  return float(3 * (sizes.num_layers * layer + projection + loss))


def best_rate(flops: float, run: Callable[[], None], repeats: int) -> float:
  """The highest rate of `run`, in FLOP/s; the first call is not timed."""
  run()
  return flops / min(seconds(run) for _ in range(repeats))


def seconds(run: Callable[[], None]) -> float:
  """Wall time of one call."""
  start = time.perf_counter()
  run()
  return time.perf_counter() - start


def time_steps(args: argparse.Namespace, step: Callable[[int], None]) -> Times:
  """Runs `step(i)` for the warm-up, then for the timed steps."""
  times = Times([], [], [])
  for i in range(args.warmup + args.steps):
    own, busy = time.process_time(), _busy_seconds()
    wall = seconds(lambda: step(i))
    own, busy = time.process_time() - own, _busy_seconds() - busy
    if i >= args.warmup:
      times.wall.append(wall)
      times.cores.append(own)
      times.elsewhere.append(max(busy - own, 0.0))
  return times


def _busy_seconds() -> float:
  """Core seconds that the machine has spent on anything; Linux only."""
  try:
    with open('/proc/stat') as f:
      user, nice, system = map(int, f.readline().split()[1:4])
  except FileNotFoundError:
    return 0.0
  return (user + nice + system) / os.sysconf('SC_CLK_TCK')


def report(
    args: argparse.Namespace,
    sizes: Sizes,
    times: Times,
    rows: list[np.ndarray],
    num_blocks: int,
    ceiling: float,
) -> dict[str, Any]:
  """Figures of the timed steps.

  Args:
    args: the flags of the work.
    sizes: the model.
    times: of the timed steps.
    rows: tokens of each row of both towers, padding counted, of each batch.
    num_blocks: blocks of similarities in the loss.
    ceiling: measured rate of a large square product, in FLOP/s.

  Returns:
    Values for JSON; rates are those of the median step.
  """
  batches = token_batches(args, sizes.vocab_size)
  real = [np.concatenate([lengths(q), lengths(p)]) for q, p in batches]
  tokens = np.mean([np.sum(row) for row in real])
  slots = np.mean([np.sum(row) for row in rows])
  real_flops, flops = (
      np.mean([step_flops(sizes, row, args.batch, num_blocks) for row in each])
      for each in (real, rows)
  )
  median = statistics.median(times.wall)
  return {
      'step_seconds': median,
      'step_seconds_min': min(times.wall),
      'step_seconds_max': max(times.wall),
      'step_core_seconds': statistics.median(times.cores),
      'cores_busy_elsewhere': sum(times.elsewhere) / sum(times.wall),
      'examples_per_second': args.batch / median,
      'examples_per_core_second': args.batch / statistics.median(times.cores),
      'real_tokens_per_second': float(tokens) / median,
      'real_token_share': float(tokens / slots),
      'step_flops': float(flops),
      'step_flops_on_real_tokens': float(real_flops),
      'ceiling_flops_per_second': ceiling,
      'mfu': float(flops) / median / ceiling,
      'mfu_on_real_tokens': float(real_flops) / median / ceiling,
      'peak_rss_bytes': 1024
      * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
  }


def planned_bytes(analysis: Any) -> int:
  """What XLA plans by `compiled.memory_analysis()`, donated arrays once."""
  return (
      analysis.argument_size_in_bytes
      + analysis.temp_size_in_bytes
      + analysis.output_size_in_bytes
      - analysis.alias_size_in_bytes
  )


def show(name: str, figures: dict[str, Any]) -> None:
  """Prints the report for people."""
  f = figures
  print(
      f'{name}: {f["examples_per_second"]:.1f} examples/s,'
      f' {f["real_tokens_per_second"]:.0f} real tokens/s; median step'
      f' {f["step_seconds"]:.3f} s ({f["step_seconds_min"]:.3f} to'
      f' {f["step_seconds_max"]:.3f})\n'
      f'  {f["step_core_seconds"]:.2f} core seconds a step'
      f' ({f["examples_per_core_second"]:.1f} examples a core second),'
      f' {f["cores_busy_elsewhere"]:.1f} cores busy elsewhere\n'
      f'  {f["step_flops"] / 1e9:.1f} GFLOP a step,'
      f' {f["step_flops_on_real_tokens"] / 1e9:.1f} on real tokens'
      f' ({f["real_token_share"]:.0%} of all); ceiling'
      f' {f["ceiling_flops_per_second"] / 1e9:.0f} GFLOP/s; MFU'
      f' {f["mfu"]:.1%}, {f["mfu_on_real_tokens"]:.1%} on real tokens\n'
      f'  peak resident memory {f["peak_rss_bytes"] / 1e6:.0f} MB'
      + (
          f', on the device {f["device_peak_bytes"] / 1e6:.0f} MB'
          if f.get('device_peak_bytes')
          else ''
      ),
      flush=True,
  )
