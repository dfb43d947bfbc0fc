"""Times sentence-transformers' training step; prints one line of JSON.

The same sizes, token lengths, loss (in-batch softmax of both directions) and
optimizer as ours, padded to the longest row of a batch, as the library does.
Run with the Python of an environment that has sentence-transformers;
train_step.py calls it.
"""

import argparse
from collections.abc import Callable, Sequence
import json
import os
import tempfile
from typing import Any

import harness
import numpy as np
import sentence_transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling
import tokenizers
import torch
import transformers
import workload

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  workload.add_flags(parser)
  args = parser.parse_args()
  sizes = workload.MODELS[args.model]
  # PyTorch counts cores of the machine, not those that it may use.
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  dtype = getattr(torch, args.dtype)
  ceiling = harness.best_rates(*square_product(dtype))

  encoder = make_encoder(sizes, args.dropout_rate)
  model = make_model(sizes, encoder, args.passage_length).train()
  if args.dtype != 'float32':
    encode_in(dtype, model)
  loss = make_loss(model, args.micro_batch)
  optimizer = make_optimizer(args.optimizer, model)
  tokens = workload.token_batches(args, sizes.vocab_size)
  batches = [(features(query), features(passage)) for query, passage in tokens]
  labels = torch.arange(args.batch, device=DEVICE)

  def step(i):
    # The model adds its outputs to the dictionaries.
    pair = [dict(f) for f in batches[i % len(batches)]]
    value = loss(pair, labels)
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    optimizer.step()
    synchronize()

  turns = workload.time_steps(args, step)
  figures = {
      'side': 'sentence-transformers',
      'torch': torch.__version__,
      'transformers': transformers.__version__,
      'sentence_transformers': sentence_transformers.__version__,
      'device_peak_bytes': (
          torch.cuda.max_memory_allocated() if DEVICE == 'cuda' else 0
      ),
      **workload.report(
          args,
          turns,
          [
              np.repeat([x['input_ids'].shape[1] for x in batch], args.batch)
              for batch in batches
          ],
          workload.NUM_BLOCKS['softmax'],
          ceiling['flops_per_second'],
      ),
  }
  print(json.dumps(figures))


def make_encoder(
    sizes: workload.Sizes, dropout_rate: float = 0.0
) -> transformers.T5EncoderModel:
  """A T5 encoder of random weights."""
  return transformers.T5EncoderModel(
      transformers.T5Config(
          vocab_size=sizes.vocab_size,
          d_model=sizes.features,
          num_layers=sizes.num_layers,
          num_heads=sizes.num_heads,
          d_kv=sizes.head_dim,
          d_ff=sizes.mlp_dim,
          feed_forward_proj='gated-gelu',
          dropout_rate=dropout_rate,
          tie_word_embeddings=False,
      )
  )


def make_model(
    sizes: workload.Sizes,
    encoder: transformers.T5EncoderModel,
    length: int,
    tokenizer: transformers.PreTrainedTokenizerBase | None = None,
) -> SentenceTransformer:
  """The encoder, mean pooling, a projection of random weights."""
  if tokenizer is None:
    # The library wants one.
    words = tokenizers.models.WordLevel({'<pad>': 0, '<unk>': 1}, '<unk>')
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words),
        pad_token='<pad>',
        unk_token='<unk>',
    )
  # It loads a model from a folder.
  with tempfile.TemporaryDirectory() as folder:
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(
        folder,
        model_kwargs={'attn_implementation': 'sdpa'},
        max_seq_length=length,
    )
  projection = Dense(
      sizes.features,
      sizes.embedding_dim,
      bias=False,
      activation_function=None,
  )
  pooling = Pooling(sizes.features, pooling_mode='mean')
  return SentenceTransformer(
      modules=[transformer, pooling, projection], device=DEVICE
  )


def make_loss(
    model: torch.nn.Module, mini_batch: int | None, temperature: float = 0.01
) -> torch.nn.Module:
  """The in-batch softmax of both directions, cached if there is a size."""
  options = {
      'scale': 1.0 / temperature,
      'directions': ('query_to_doc', 'doc_to_query'),
      'partition_mode': 'per_direction',
  }
  if mini_batch is None:
    return losses.MultipleNegativesRankingLoss(model, **options)
  return losses.CachedMultipleNegativesRankingLoss(
      model, mini_batch_size=mini_batch, **options
  )


class Given(torch.nn.Module):
  """Returns given embeddings, [m, D], by their row numbers.

  They are leaves, so that the gradient ends at them; for the Cached loss one a
  mini-batch, since a gradient of slices would cost the whole batch each time.
  """

  def __init__(self, towers: Sequence[np.ndarray], mini_batch: int):
    super().__init__()
    self._leaves, first = {}, 0
    for tower in towers:
      for part in torch.from_numpy(tower).to(DEVICE).split(mini_batch):
        self._leaves[first] = part.detach().requires_grad_()
        first += len(part)

  def forward(self, features: dict[str, torch.Tensor]) -> dict[str, Any]:
    first = int(features['input_ids'][0])
    return {'sentence_embedding': self._leaves[first]}

  def forget_gradients(self) -> None:
    for leaf in self._leaves.values():
      leaf.grad = None


def encode_in(dtype: torch.dtype, model: SentenceTransformer) -> None:
  """Lets the model, and it alone, compute in `dtype`.

  As the library's trainer does on a GPU: the embeddings come out in float32,
  and a cached loss encodes in `dtype` in the backward pass, too.
  """
  forward = model.forward

  def encode(*args, **kwargs):
    with torch.autocast(DEVICE, dtype):
      output = forward(*args, **kwargs)
    output['sentence_embedding'] = output['sentence_embedding'].float()
    return output

  model.forward = encode


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
  if name == 'adamw':
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
  return transformers.Adafactor(
      model.parameters(), lr=1e-3, scale_parameter=True, relative_step=False
  )


def features(tokens) -> dict[str, torch.Tensor]:
  """What the library's collator makes of rows: padded to the longest."""
  columns = int(workload.lengths(tokens).max())
  ids = torch.from_numpy(tokens[:, :columns]).long().to(DEVICE)
  return {
      'input_ids': ids,
      'attention_mask': (ids != workload.PAD).long(),
  }


def square_product(dtype: torch.dtype) -> tuple[float, Callable[[], None]]:
  """A large product: its FLOP, and what computes it."""
  side = 2048 if DEVICE == 'cpu' else 8192
  a = torch.randn(side, side, device=DEVICE).to(dtype)

  def product():
    torch.mm(a, a)
    synchronize()

  return 2.0 * side**3, product


def synchronize() -> None:
  if DEVICE == 'cuda':
    torch.cuda.synchronize()


if __name__ == '__main__':
  main()
