"""The work of the encoding benchmark, the same for both sides.

Passages are JSON objects, one a line, with a `text`. The weights are random;
our side writes them to a folder, and the pieces of the vocabulary beside them.
Needs neither JAX nor PyTorch.
"""

import argparse
import itertools
import json
import pathlib

import workload

WEIGHTS = 'weights.npz'
PIECES = 'pieces.json'


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that both sides need."""
  parser.add_argument('--model', choices=workload.MODELS, default='small')
  parser.add_argument(
      '--texts', required=True, metavar='FILE', help='JSONL of passages'
  )
  parser.add_argument('--passages', type=int, default=5000)
  parser.add_argument('--passage_length', type=int, default=128)
  parser.add_argument('--dtype', choices=workload.DTYPES, default='float32')
  parser.add_argument(
      '--batch', type=int, default=256, help='our most rows at once'
  )
  parser.add_argument(
      '--peer_batch', type=int, default=64, help="the peer's rows at once"
  )
  parser.add_argument(
      '--vocabulary', required=True, metavar='FILE', help='SentencePiece model'
  )


def read_texts(args: argparse.Namespace) -> list[str]:
  """The first passages of the file."""
  with pathlib.Path(args.texts).open(encoding='utf-8') as f:
    return [
        json.loads(line)['text'] for line in itertools.islice(f, args.passages)
    ]
