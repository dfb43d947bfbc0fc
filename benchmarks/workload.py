"""The work of a training step, the same for ours and the peer's; NumPy only.

B pairs, L tokens (Lq and Lp by tower), E model dim, D embedding dim.
"""

import argparse
from collections.abc import Callable, Iterator
import dataclasses
from typing import Any

import harness
import numpy as np

PAD = 0
# Natural text is near log-normal in tokens; MS MARCO's queries and passages
# both have about this deviation of the logarithm.
SIGMA = 0.4
NUM_BATCHES = 8
# Made-up texts that are drawn at once.
_CHUNK = 10_000
DTYPES = ('float32', 'bfloat16')
# The in-batch softmax scores queries against passages, and the reverse;
# SamToNe scores queries against queries, too.
NUM_BLOCKS = {'softmax': 2, 'samtone': 3}
LAYOUTS = 'padded', 'packed'


@dataclasses.dataclass(frozen=True)
class Sizes:
  """A T5 encoder and its projection, shared by both towers.

  With `num_kv_heads` it is EmbeddingGemma's, of global layers alone.
  """

  num_layers: int
  features: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  embedding_dim: int
  vocab_size: int = 32128
  num_kv_heads: int | None = None


# Those of gin/models, T5.1.1, and a tiny one: no side needs gin.
MODELS = {
    'tiny': Sizes(2, 128, 4, 32, 256, 128),
    'mini': Sizes(4, 256, 4, 64, 512, 256),
    'small': Sizes(8, 512, 6, 64, 1024, 768),
    'base': Sizes(12, 768, 12, 64, 2048, 768),
    'large': Sizes(24, 1024, 16, 64, 2816, 768),
    # Six layers of EmbeddingGemma 300M, with a T5's vocabulary.
    'gemma': Sizes(6, 768, 3, 256, 1152, 768, num_kv_heads=1),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that describe the work."""
  add = parser.add_argument
  add('--model', choices=MODELS, default='mini')
  add('--batch', type=int, default=64, help='pairs a step')
  add(
      '--micro_batch',
      type=int,
      help='gradient caching: pairs encoded at once; by default all',
  )
  add('--query_length', type=int, default=32)
  add('--passage_length', type=int, default=128)
  add('--mean_query', type=float, default=8.0)
  add('--mean_passage', type=float, default=75.0)
  add('--dtype', choices=DTYPES, default='float32')
  add('--dropout_rate', type=float, default=0.0)
  add('--optimizer', choices=('adafactor', 'adamw'), default='adafactor')
  add('--steps', type=int, default=10, help='timed steps')
  add('--warmup', type=int, default=3, help='untimed steps')


def token_batches(
    args: argparse.Namespace,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Random tokens of natural lengths, the same on both sides.

  Returns:
    `NUM_BATCHES` pairs of int32 [B, Lq] and [B, Lp], padded with `PAD`.
  """
  rng = np.random.default_rng(0)
  vocab_size = MODELS[args.model].vocab_size

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


def made_up_texts(
    vocabulary: Any, count: int, mean: float, limit: int
) -> Iterator[str]:
  """Texts of words of a SentencePiece file, of natural lengths in tokens.

  The frequencies of the words follow Zipf's law.
  """
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor()
  processor.load(str(vocabulary))
  pieces = (
      processor.id_to_piece(i) for i in range(processor.get_piece_size())
  )
  words = [p[1:] for p in pieces if p[0] == '\u2581' and p[1:].isalpha()]
  weights = 1 / np.arange(10, 10 + len(words))
  rng = np.random.default_rng(0)
  for start in range(0, count, _CHUNK):
    lengths = natural_lengths(rng, min(_CHUNK, count - start), mean, limit)
    ends = np.cumsum(lengths - 1)  # And EOS.
    drawn = rng.choice(len(words), ends[-1], p=weights / weights.sum())
    for chosen in np.split(drawn, ends[:-1]):
      yield ' '.join([words[i] for i in chosen])


def lengths(tokens: np.ndarray) -> np.ndarray:
  """Real tokens of each row, int [B]."""
  return np.sum(tokens != PAD, axis=1)


def step_flops(
    sizes: Sizes, rows: np.ndarray, batch: int, num_blocks: int
) -> float:
  """Floating-point operations of the matrix products of one training step.

  README.md has the formula. Norms, softmax, lookup of the embeddings, dropout,
  optimizer and recomputation do not count.

  Args:
    sizes: the model.
    rows: tokens of each row of the two towers, padding counted or not.
    batch: B, pairs.
    num_blocks: blocks of similarities in the loss.
  """
  joined = sizes.num_heads * sizes.head_dim
  of_keys = (sizes.num_kv_heads or sizes.num_heads) * sizes.head_dim
  mlp = 3 * sizes.features * sizes.mlp_dim
  token = 2 * (2 * sizes.features * (joined + of_keys) + mlp)
  rows = np.asarray(rows, np.float64)
  layer = np.sum(token * rows + 4 * joined * rows**2)
  projection = 2 * sizes.features * sizes.embedding_dim * 2 * batch
  loss = num_blocks * 2 * batch**2 * sizes.embedding_dim
  return float(3 * (sizes.num_layers * layer + projection + loss))


def time_steps(
    args: argparse.Namespace, step: Callable[[int], None]
) -> list[harness.Figures]:
  """Runs `step(i)` for the warm-up, then for the timed steps."""
  turns = [
      harness.turn(lambda: step(i)) for i in range(args.warmup + args.steps)
  ]
  return turns[args.warmup :]


def report(
    args: argparse.Namespace,
    turns: list[harness.Figures],
    rows: list[np.ndarray],
    num_blocks: int,
    ceiling: float,
) -> harness.Figures:
  """Figures of the timed steps; rates are those of the median step.

  Args:
    args: the flags of the work.
    turns: of `time_steps`.
    rows: tokens of each row of both towers, padding counted, of each batch.
    num_blocks: blocks of similarities in the loss.
    ceiling: measured rate of a large square product, in FLOP/s.
  """
  sizes = MODELS[args.model]
  batches = token_batches(args)
  real = [np.concatenate([lengths(q), lengths(p)]) for q, p in batches]
  tokens = np.mean([np.sum(row) for row in real])
  slots = np.mean([np.sum(row) for row in rows])
  real_flops, flops = (
      np.mean([step_flops(sizes, row, args.batch, num_blocks) for row in each])
      for each in (real, rows)
  )
  wall = [turn['seconds'] for turn in turns]
  found = harness.medians(turns)
  median, cores = found['seconds'], found['core_seconds']
  elsewhere = [t['cores_busy_elsewhere'] * t['seconds'] for t in turns]
  return {
      'step_seconds': median,
      'step_seconds_min': min(wall),
      'step_seconds_max': max(wall),
      'step_core_seconds': cores,
      'cores_busy_elsewhere': sum(elsewhere) / sum(wall),
      'examples_per_second': args.batch / median,
      'examples_per_core_second': args.batch / cores,
      'real_tokens_per_second': float(tokens) / median,
      'real_token_share': float(tokens / slots),
      'step_flops': float(flops),
      'step_flops_on_real_tokens': float(real_flops),
      'ceiling_flops_per_second': ceiling,
      'mfu': float(flops) / median / ceiling,
      'mfu_on_real_tokens': float(real_flops) / median / ceiling,
      'peak_rss_bytes': harness.peak_resident_bytes(),
  }
