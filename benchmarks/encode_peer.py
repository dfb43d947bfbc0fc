"""SentenceTransformer.encode in the encoding benchmark, ordered by encode.py.

Run with the Python of an environment that has sentence-transformers.
"""

import argparse
import json
import os
import pathlib
from typing import Any

import encode_work
import loss_work
import numpy as np
import sentence_transformers
import sides
import torch
import train_step_peer
import transformers
import workload

DEVICE = train_step_peer.DEVICE
# Each of ours, below a layer, and the transposed weight of theirs.
LAYER_KERNELS = {
    'attention/query': 'layer.0.SelfAttention.q',
    'attention/key': 'layer.0.SelfAttention.k',
    'attention/value': 'layer.0.SelfAttention.v',
    'attention/out': 'layer.0.SelfAttention.o',
    'mlp/wi_0': 'layer.1.DenseReluDense.wi_0',
    'mlp/wi_1': 'layer.1.DenseReluDense.wi_1',
    'mlp/wo': 'layer.1.DenseReluDense.wo',
}
REL_BIAS = 'encoder.block.0.layer.0.SelfAttention.relative_attention_bias'


class Peer:
  """The same weights, vocabulary and passages as our side."""

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._texts = encode_work.read_texts(args)
    self._model = None
    self._embeddings = None

  def describe(self) -> dict[str, Any]:
    return {
        'torch': torch.__version__,
        'transformers': transformers.__version__,
        'sentence_transformers': sentence_transformers.__version__,
        'threads': torch.get_num_threads(),
    }

  def read(self, folder: str) -> None:
    """Makes the model from what our side wrote."""
    folder = pathlib.Path(folder)
    weights = dict(np.load(folder / encode_work.WEIGHTS))
    pieces = json.loads((folder / encode_work.PIECES).read_text())
    sizes = workload.MODELS[self._args.model]
    encoder = train_step_peer.make_encoder(sizes)
    encoder.load_state_dict(to_hf(weights, sizes.num_layers), strict=False)
    vocabulary = [tuple(piece) for piece in pieces]
    model = train_step_peer.make_model(
        sizes,
        encoder,
        self._args.passage_length,
        transformers.T5Tokenizer(vocab=vocabulary, extra_ids=0),
    )
    projection = weights['projection/kernel'].T.copy()
    model[-1].linear.weight.data = torch.from_numpy(projection)
    self._model = model.to(DEVICE, getattr(torch, self._args.dtype))

  def first(self) -> dict[str, float]:
    """Two batches to warm up."""
    texts = self._texts[: 2 * self._args.peer_batch]
    return loss_work.timed(lambda: self._encode(texts), 1)

  def from_texts(self) -> dict[str, float]:
    return loss_work.timed(lambda: self._encode(self._texts), 1)

  def save(self, file: str) -> dict[str, float]:
    """Writes the last embeddings; returns the peak memory."""
    np.save(file, self._embeddings)
    return {'peak_bytes': loss_work.peak_resident_bytes()}

  def _encode(self, texts: list[str]) -> None:
    # The library sorts the texts by length.
    self._embeddings = self._model.encode(
        texts,
        batch_size=self._args.peer_batch,
        show_progress_bar=False,
        normalize_embeddings=True,
    )


def to_hf(
    weights: dict[str, np.ndarray], num_layers: int
) -> dict[str, torch.Tensor]:
  """Our parameters by the encoder's names of theirs."""
  embedding = weights['token_embedder/embedding']
  result = {
      'shared.weight': embedding,
      'encoder.embed_tokens.weight': embedding,
      'encoder.final_layer_norm.weight': weights['encoder/encoder_norm/scale'],
      f'{REL_BIAS}.weight': weights['encoder/relpos_bias/rel_embedding'].T,
  }
  for i in range(num_layers):
    ours, theirs = f'encoder/layers_{i}/', f'encoder.block.{i}.'
    for name, hf_name in LAYER_KERNELS.items():
      if (key := f'{ours}{name}/kernel') in weights:
        result[f'{theirs}{hf_name}.weight'] = weights[key].T
    for j, name in enumerate(['attention', 'mlp']):
      scale = weights[f'{ours}pre_{name}_layer_norm/scale']
      result[f'{theirs}layer.{j}.layer_norm.weight'] = scale
  return {name: torch.from_numpy(x.copy()) for name, x in result.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  encode_work.add_flags(parser)
  args = parser.parse_args()
  # PyTorch counts cores of the machine, not those that it may use.
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  sides.serve(Peer(args))


if __name__ == '__main__':
  main()
