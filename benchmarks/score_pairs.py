"""Times a cross-encoder over pairs; see benchmarks/README.md.

Ours as `dualenc rerank` runs it, in packed and in padded rows, and
sentence-transformers' CrossEncoder over a BERT of the same sizes, and over a
T5 as transformers classifies with one. Every side is a process of its own, and
they take turns in every round. Weights are random.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import harness
import numpy as np

LAYERS, WIDTH, HEADS, HIDDEN, ROWS = 6, 384, 12, 1536, 32128
OURS = ('sorted', 'packed', 'padded')
PEERS = ('bert', 't5')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--data', required=True, help="a set in BEIR's layout with runs/")
  add('--run', required=True, help='TREC run of it whose hits are scored')
  add('--vocabulary', required=True, metavar='FILE', help="T5's SentencePiece")
  add('--queries', type=int, default=20)
  add('--depth', type=int, default=100)
  add('--length', type=int, default=256)
  add('--peer_batch', type=int, default=32, help="the peer's rows at once")
  add('--side', help=argparse.SUPPRESS)
  harness.add_flags(parser)
  args = parser.parse_args()
  if args.side is None:
    compare(args)
  elif args.side in OURS:
    harness.serve(Ours(args))
  else:
    harness.serve(Peer(args))


def compare(args: argparse.Namespace) -> None:
  """Runs all sides in turns; prints medians."""
  names = ('data', 'run', 'vocabulary', 'queries', 'depth', 'length')
  flags = harness.flags(args, (*names, 'peer_batch'))
  peer = harness.peer_python(args.peer_python)
  commands = {
      f'dualenc_jax, {side}': [
          sys.executable, __file__, *flags, f'--side={side}'
      ]
      for side in OURS
  }
  for side in PEERS if peer else ():
    command = [peer, __file__, *flags, f'--side={side}']
    commands[f'CrossEncoder, {side}'] = harness.tuned(command)
  running = {n: harness.Side(command) for n, command in commands.items()}
  described = {name: side.ask('describe') for name, side in running.items()}
  for side in running.values():
    side.ask('score')
  rounds = {name: [] for name in running}
  for _ in range(args.rounds):
    for name, side in running.items():
      rounds[name].append(side.ask('score'))
  ours = rounds[f'dualenc_jax, {OURS[0]}']
  rows = []
  for name, each in rounds.items():
    found = harness.medians(each)
    by_clock, by_cores = (
        harness.ratio(ours, each, key) for key in ('seconds', 'core_seconds')
    )
    pairs = described[name]['pairs']
    peak = running[name].ask('peak')
    rows.append(
        f'{name} | {pairs / found["seconds"]:.0f} |'
        f' {found["core_seconds"] / pairs * 1e3:.2f} |'
        f' {described[name]["slots"]:,} | {harness.mib(peak)} |'
        f' {by_clock:.2f} | {by_cores:.2f}'
    )
  for side in running.values():
    side.close()
  print(json.dumps(described))
  print(harness.table(
      'side | pairs/s | core ms a pair | tokens computed | peak memory | ours'
      ' over this, clock | by core seconds', rows
  ))


def texts(args: argparse.Namespace) -> tuple[list[str], list[str]]:
  """Queries and passages of the pairs."""
  data = pathlib.Path(args.data)

  def read(name: str) -> dict[str, str]:
    rows = map(json.loads, (data / name).open(encoding='utf-8'))
    return {
        row['_id']: f'{row.get("title", "")} {row["text"]}'.strip()
        for row in rows
    }

  queries, corpus = read('queries.jsonl'), read('corpus.jsonl')
  hits: dict[str, list[str]] = {}
  for line in (data / args.run).open(encoding='utf-8'):
    query, _, passage, *_ = line.split()
    hits.setdefault(query, []).append(passage)
  chosen = [
      (queries[query], corpus[passage])
      for query in list(hits)[: args.queries]
      for passage in hits[query][: args.depth]
  ]
  return tuple(map(list, zip(*chosen)))


class Ours:
  """Our cross-encoder, from texts to scores."""

  def __init__(self, args: argparse.Namespace):
    from flax import linen as nn
    import jax

    from dualenc_jax.commands import runtime
    from dualenc_jax.data import Template, Tokenizer, Vocabulary
    from dualenc_jax.inference.embedder import Scorer
    from dualenc_jax.inference.teacher import Teacher
    from dualenc_jax.models import (
      CrossEncoder,
      ScoreHead,
      T5Encoder,
      TokenEmbedder,
    )
    from dualenc_jax.parallel.partitioning import HostPartitioner

    if jax.default_backend() == 'cpu':
      runtime.keep_freed_memory()  # As every command does.
    self._args, self._side = args, args.side
    self.queries, self.passages = texts(args)
    model = CrossEncoder(
        TokenEmbedder(ROWS, WIDTH),
        T5Encoder(LAYERS, HEADS, WIDTH // HEADS, HIDDEN, ('gelu',)),
        ScoreHead(),
    )
    boxed = jax.jit(model.init)(jax.random.key(0), np.ones((1, 8), np.int32))
    partitioner = HostPartitioner()
    shardings = partitioner.param_shardings(boxed['params'])
    params = jax.device_put(nn.unbox(boxed['params']), shardings)
    tokenizer = Tokenizer(Vocabulary(args.vocabulary), 64, args.length)
    around = Template(length=args.length).tokens(tokenizer)
    scorer = Scorer(model, partitioner, shardings, 256)
    self._teacher = Teacher(params, tokenizer, around, scorer, {})
    self._apply = jax.jit(lambda p, t, n: model.apply({'params': p}, t, n))

  def describe(self) -> dict[str, Any]:
    lengths = self._joined().lengths
    slots = {'sorted': lengths.sum(), 'padded': len(lengths) * lengths.max()}
    rows = len(self._pack(lengths)) if self._side == 'packed' else 0
    slots['packed'] = rows * self._args.length
    return {'pairs': len(lengths), 'slots': int(slots[self._side])}

  def score(self) -> dict[str, float]:
    run = {'sorted': self._sorted}.get(self._side, self._in_rows)
    return harness.turn(run)

  def peak(self) -> int:
    return harness.peak_resident_bytes()

  def _sorted(self) -> None:
    pairs = np.repeat(np.arange(len(self.queries))[:, None], 2, axis=1)
    self.scores = self._teacher.scores(self.queries, self.passages, pairs)

  def _joined(self):
    t = self._teacher.tokenizer
    return self._teacher.around.join(
        t.encode_queries(self.queries), t.encode_passages(self.passages)
    )

  def _pack(self, lengths: np.ndarray) -> list[list[int]]:
    """Texts of each row: the longest first, where they fit."""
    rows, room = [], []
    for i in np.argsort(-lengths, kind='stable').tolist():
      fitting = (r for r, left in enumerate(room) if left >= lengths[i])
      fits = next(fitting, None)
      if fits is None:
        fits = len(rows)
        rows.append([])
        room.append(self._args.length)
      rows[fits].append(i)
      room[fits] -= lengths[i]
    return rows

  def _in_rows(self) -> None:
    tokens = self._joined()
    if self._side == 'packed':
      rows = self._pack(tokens.lengths)
      length = self._args.length
    else:
      rows = [[i] for i in range(len(tokens))]
      length = int(tokens.lengths.max())
    most, at_once = max(map(len, rows)), 2048 // length
    for start in range(0, len(rows), at_once):
      block = np.zeros((at_once, length), np.int32)
      lengths = np.zeros((at_once, most), np.int32)
      for row, members in enumerate(rows[start : start + at_once]):
        joined = np.concatenate([tokens.row(i) for i in members])
        block[row, : len(joined)] = joined
        lengths[row, : len(members)] = tokens.lengths[members]
      found = self._apply(self._teacher.params, block, lengths)
    found.block_until_ready()


class Peer:
  """CrossEncoder.predict, from texts to scores."""

  def __init__(self, args: argparse.Namespace):
    import sentence_transformers
    import sentencepiece
    import torch
    import transformers

    # PyTorch counts cores of the machine, not those that it may use.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    self._args = args
    self.queries, self.passages = texts(args)
    processor = sentencepiece.SentencePieceProcessor(
        model_file=args.vocabulary
    )
    pieces = [
        (processor.id_to_piece(i), processor.get_score(i))
        for i in range(processor.get_piece_size())
    ]
    tokenizer = transformers.T5Tokenizer(vocab=pieces)
    if args.side == 'bert':
      kind = transformers.BertForSequenceClassification
      config = transformers.BertConfig(
          vocab_size=ROWS,
          hidden_size=WIDTH,
          num_hidden_layers=LAYERS,
          num_attention_heads=HEADS,
          intermediate_size=HIDDEN,
          num_labels=1,
      )
    else:
      kind = transformers.T5ForSequenceClassification
      config = transformers.T5Config(
          vocab_size=ROWS,
          d_model=WIDTH,
          d_kv=WIDTH // HEADS,
          num_layers=LAYERS,
          num_heads=HEADS,
          d_ff=HIDDEN,
          feed_forward_proj='gelu_new',
          decoder_start_token_id=0,
          num_labels=1,
      )
    with tempfile.TemporaryDirectory() as folder:
      kind(config).save_pretrained(folder)
      tokenizer.save_pretrained(folder)
      self._model = sentence_transformers.CrossEncoder(
          folder, max_length=args.length, local_files_only=True
      )

  def describe(self) -> dict[str, Any]:
    import torch

    return {
        'pairs': len(self.queries),
        'slots': 0,
        'torch': torch.__version__,
        'threads': torch.get_num_threads(),
    }

  def score(self) -> dict[str, float]:
    pairs = list(zip(self.queries, self.passages))
    return harness.timed(
        lambda: self._model.predict(
            pairs,
            batch_size=self._args.peer_batch,
            show_progress_bar=False,
        ),
        1,
    )

  def peak(self) -> int:
    return harness.peak_resident_bytes()


if __name__ == '__main__':
  main()
