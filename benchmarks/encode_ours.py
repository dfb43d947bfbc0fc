"""Our side of the encoding benchmark; encode.py starts it, gives it orders."""

import argparse
import json
import pathlib
from typing import Any

import encode_work
from flax import linen as nn, traverse_util
import jax
import loss_work
import numpy as np
import sentencepiece
import sides
import train_step

from dualenc_jax import training
from dualenc_jax.commands import runtime
from dualenc_jax.data import Tokenizer, Vocabulary
from dualenc_jax.inference.embedder import Embedder


class Ours:
  """What `dualenc encode` computes, without reading and writing files."""

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._texts = encode_work.read_texts(args)
    self._tokenizer = Tokenizer(
        Vocabulary(args.vocabulary), passage_length=args.passage_length
    )
    model, _ = train_step.build(
        argparse.Namespace(**vars(args), dropout_rate=0.0, optimizer='adamw')
    )
    partitioner = training.Partitioner()
    tokens = np.ones((1, 8), np.int32)
    boxed = jax.jit(model.init)(jax.random.key(0), tokens, tokens)['params']
    shardings = partitioner.param_shardings(boxed)
    self._params = jax.device_put(nn.unbox(boxed), shardings)
    self._embedder = Embedder(model, partitioner, shardings, args.batch)
    self._tokens = None
    self._embeddings = None

  def describe(self) -> dict[str, Any]:
    device = jax.devices()[0]
    return {'device': device.device_kind, 'jax': jax.__version__}

  def write(self, folder: str) -> None:
    """Writes the weights and the vocabulary for the peer."""
    folder = pathlib.Path(folder)
    flat = traverse_util.flatten_dict(self._params, sep='/')
    np.savez(folder / encode_work.WEIGHTS, **jax.device_get(flat))
    processor = sentencepiece.SentencePieceProcessor(
        model_file=self._args.vocabulary
    )
    pieces = [
        (processor.id_to_piece(i), processor.get_score(i))
        for i in range(processor.get_piece_size())
    ]
    (folder / encode_work.PIECES).write_text(json.dumps(pieces))

  def first(self) -> dict[str, float]:
    """The first run, which compiles."""
    return self.from_texts()

  def from_texts(self) -> dict[str, float]:
    return loss_work.timed(self._tokenise_and_encode, 1)

  def from_tokens(self) -> dict[str, float]:
    return loss_work.timed(self._encode, 1)

  def save(self, file: str) -> dict[str, float]:
    """Writes the last embeddings; returns the tokens and the peak memory."""
    np.save(file, self._embeddings)
    return {
        'tokens': int(self._tokens.lengths.sum()),
        'peak_bytes': loss_work.peak_resident_bytes(),
    }

  def _tokenise_and_encode(self) -> None:
    self._tokens = self._tokenizer.encode_passages(self._texts)
    self._encode()

  def _encode(self) -> None:
    self._embeddings = self._embedder.passages(self._params, self._tokens)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  encode_work.add_flags(parser)
  args = parser.parse_args()
  if jax.default_backend() == 'cpu':
    runtime.keep_freed_memory()  # As every command does.
  sides.serve(Ours(args))


if __name__ == '__main__':
  main()
