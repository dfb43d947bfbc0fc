"""Times encoding passages; see benchmarks/README.md.

Ours from texts, and sentence-transformers' `encode` with the same weights where
--peer_python or this Python has it, plain and with tuned malloc. Passages are
JSON objects, one a line, with a `text`, or made up. Weights are random.
"""

import argparse
import functools
import itertools
import json
import pathlib
import tempfile
from typing import Any

import harness
import numpy as np
import workload

OURS, PEER = 'dualenc_jax', 'sentence-transformers'
# The least cosine of the two embeddings of a passage whose tokens are equal;
# and the share of passages that may differ in tokens, as the peer's tokenizer
# normalises rare characters in another way.
ALIKE = {'float32': 0.9999, 'bfloat16': 0.99}
OTHER_TOKENS = 0.03


def main() -> None:
  parser = harness.parser(__doc__)
  add = parser.add_argument
  add('--model', choices=workload.MODELS, default='small')
  add('--texts', metavar='FILE', help='JSONL of passages; else made up')
  add('--passages', type=int, default=5000)
  add('--passage_length', type=int, default=128)
  add('--dtype', choices=workload.DTYPES, default='float32')
  add('--batch', type=int, default=256, help='our most rows at once')
  add('--peer_batch', type=int, default=64, help="the peer's rows at once")
  add('--vocabulary', required=True, metavar='FILE', help='SentencePiece model')
  args = parser.parse_args()
  if args.side is None:
    compare(args)
  else:
    harness.serve({OURS: Ours, PEER: Peer}[args.side](args))


def compare(args: argparse.Namespace) -> None:
  """Runs all sides in turns; raises ValueError if embeddings differ."""
  peer = harness.peer_python(args.peer_python)
  commands = {OURS: harness.command(OURS)}
  commands |= harness.beside(peer, not args.plain_malloc, PEER)
  running = {name: harness.Side(each) for name, each in commands.items()}
  with tempfile.TemporaryDirectory() as folder:
    first = {}
    for name, side in running.items():
      side.ask('share', f'{folder}/model')
      first[name] = side.ask('encode', True)
    rounds = harness.in_turns(running, args.rounds, 'encode')
    saved, embeddings = {}, {}
    for place, (name, side) in enumerate(running.items()):
      file = f'{folder}/{place}.npy'
      saved[name] = side.ask('save', file)
      embeddings[name] = np.load(file)
      side.close()
  for name, theirs in embeddings.items():
    cosine = np.sum(embeddings[OURS] * theirs, axis=1)
    other = float(np.mean(cosine < ALIKE[args.dtype]))
    if other > OTHER_TOKENS:
      raise ValueError(f'{name} and ours differ on {other:.0%} of passages.')
    saved[name]['share_of_other_embeddings'] = other
  if not args.json:
    peaks = {name: each['peak_bytes'] for name, each in saved.items()}
    print(harness.rates(rounds, peaks, args.passages, 'passages'))
  print(json.dumps({
      'flags': vars(args), 'first': first, 'saved': saved, 'rounds': rounds,
  }))


class Ours:
  """The computation of `dualenc encode`, without reading and writing files."""

  def __init__(self, args: argparse.Namespace):
    from flax import linen as nn
    import jax
    import ours

    from dualenc_jax import training
    from dualenc_jax.data import Tokenizer, Vocabulary
    from dualenc_jax.retrieval.encoding.embedder import Embedder

    self._describe, self._texts = ours.describe, _read_texts(args)
    self._tokenizer = Tokenizer(
        Vocabulary(args.vocabulary), passage_length=args.passage_length
    )
    model = ours.make_model(args.model, args.dtype)
    partitioner = training.Partitioner()
    tokens = np.ones((1, 8), np.int32)
    with ours.on_host():
      boxed = jax.jit(model.init)(jax.random.key(0), tokens, tokens)['params']
    shardings = partitioner.param_shardings(boxed)
    self._encoder = model.encoder
    self._params = jax.device_put(nn.unbox(boxed), shardings)
    self._embedder = Embedder(model, partitioner, shardings, args.batch)

  def share(self, folder: str) -> None:
    """Writes the model for the peer."""
    from flax import traverse_util

    from dualenc_jax.checkpoints import conversion, weights
    from dualenc_jax.utils.tensor_files.tensors import Tensor

    arrays = traverse_util.flatten_dict(self._params, sep='/')
    tensors = {
        name: Tensor(name, array.shape, functools.partial(np.asarray, array))
        for name, array in arrays.items()
    }
    length = self._tokenizer.passage_length
    file = self._tokenizer.vocabulary.file
    usage = weights.Usage(file, query_length=length, passage_length=length)
    out = pathlib.Path(folder)
    out.mkdir()
    conversion.FORMS['sentence_transformers'].write(
        weights.Weights(
            'random', 'memory', tensors, self._encoder, usage=usage
        ),
        out,
    )

  def encode(self, first: bool = False) -> harness.Figures:
    """Tokenises and encodes; the first time compiles."""
    del first
    return harness.turn(self._encode)

  def save(self, file: str) -> dict[str, Any]:
    """Writes the last embeddings; a description, and the peak memory."""
    np.save(file, self._embeddings)
    return {
        **self._describe(),
        'tokens': int(self._tokens.lengths.sum()),
        'peak_bytes': harness.peak_resident_bytes(),
    }

  def _encode(self) -> None:
    self._tokens = self._tokenizer.encode_passages(self._texts)
    self._embeddings = self._embedder.passages(self._params, self._tokens)


class Peer:
  """SentenceTransformer.encode with our weights, vocabulary and passages."""

  def __init__(self, args: argparse.Namespace):
    import peer

    self._args, self._peer = args, peer
    self._texts = _read_texts(args)

  def share(self, folder: str) -> None:
    """Reads the model of our side."""
    import sentence_transformers
    import torch

    model = sentence_transformers.SentenceTransformer(
        folder, device=self._peer.DEVICE
    )
    model.max_seq_length = self._args.passage_length
    self._model = model.to(getattr(torch, self._args.dtype))

  def encode(self, first: bool = False) -> harness.Figures:
    """Encodes; the first time two batches alone."""
    count = 2 * self._args.peer_batch if first else None
    return harness.turn(lambda: self._encode(self._texts[:count]))

  def save(self, file: str) -> dict[str, Any]:
    np.save(file, self._embeddings)
    return {
        **self._peer.describe(), 'peak_bytes': harness.peak_resident_bytes()
    }

  def _encode(self, texts: list[str]) -> None:
    # The library sorts the texts by length.
    self._embeddings = self._model.encode(
        texts,
        batch_size=self._args.peer_batch,
        show_progress_bar=False,
        normalize_embeddings=True,
    )


def _read_texts(args: argparse.Namespace) -> list[str]:
  """The first passages of the file, or made-up ones."""
  if args.texts is None:
    length = args.passage_length
    return list(
        workload.made_up_texts(args.vocabulary, args.passages, 75.0, length)
    )
  with pathlib.Path(args.texts).open(encoding='utf-8') as f:
    rows = itertools.islice(f, args.passages)
    return [json.loads(line)['text'] for line in rows]


if __name__ == '__main__':
  main()
