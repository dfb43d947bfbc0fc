"""sentence-transformers' side: models of the same sizes, and the training step.

The same token lengths, loss (in-batch softmax of both directions) and optimizer
as ours, padded to the longest row of a batch, as the library does. Runs in a
Python that has sentence-transformers.
"""

import argparse
from collections.abc import Sequence
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
import sentencepiece
import tokenizers
import torch
import transformers
import workload

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
# PyTorch counts cores of the machine, not those that it may use.
torch.set_num_threads(len(os.sched_getaffinity(0)))


def describe() -> dict[str, Any]:
  return {
      'torch': torch.__version__,
      'transformers': transformers.__version__,
      'sentence_transformers': sentence_transformers.__version__,
      'matmul_precision': torch.get_float32_matmul_precision(),
      'threads': torch.get_num_threads(),
  }


def ceiling(dtype: str = 'float32') -> dict[str, float]:
  """The best rates of a large product."""
  side = 2048 if DEVICE == 'cpu' else 8192
  a = torch.randn(side, side, device=DEVICE).to(getattr(torch, dtype))

  def product():
    torch.mm(a, a)
    synchronize()

  return harness.best_rates(2.0 * side**3, product)


def device_peak_bytes() -> int:
  """The most of the device's memory so far; 0 on a CPU."""
  return torch.cuda.max_memory_allocated() if DEVICE == 'cuda' else 0


class TrainStep:
  """The library's training step."""

  def __init__(self, args: argparse.Namespace):
    self._args = args

  def measure(self) -> harness.Figures:
    """Times the step."""
    args = self._args
    torch.manual_seed(0)
    rates = ceiling(args.dtype)
    sizes = workload.MODELS[args.model]
    encoder = make_encoder(sizes, args.dropout_rate)
    model = make_model(sizes, encoder, args.passage_length).train()
    if args.dtype != 'float32':
      encode_in(getattr(torch, args.dtype), model)
    loss = make_loss(model, args.micro_batch)
    optimizer = make_optimizer(args.optimizer, model)
    batches = [
        (features(query), features(passage))
        for query, passage in workload.token_batches(args)
    ]
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
    rows = [
        np.repeat([x['input_ids'].shape[1] for x in batch], args.batch)
        for batch in batches
    ]
    return {
        **describe(),
        'device_peak_bytes': device_peak_bytes(),
        **workload.report(
            args,
            turns,
            rows,
            workload.NUM_BLOCKS['softmax'],
            rates['flops_per_second'],
        ),
    }


def t5_tokenizer(vocabulary: str) -> transformers.T5Tokenizer:
  """The pieces of a SentencePiece file."""
  pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
  return transformers.T5Tokenizer(
      vocab=[
          (pieces.id_to_piece(i), pieces.get_score(i))
          for i in range(pieces.get_piece_size())
      ],
      extra_ids=0,
  )


def make_encoder(
    sizes: workload.Sizes, dropout_rate: float = 0.0
) -> transformers.PreTrainedModel:
  """An encoder of random weights."""
  if sizes.num_kv_heads is not None:
    # It has no dropout but that of attention weights.
    return transformers.Gemma3TextModel(
        transformers.Gemma3TextConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.features,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            intermediate_size=sizes.mlp_dim,
            use_bidirectional_attention=True,
            sliding_window_pattern=1,
        )
    )
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
    encoder: transformers.PreTrainedModel,
    length: int,
) -> SentenceTransformer:
  """The encoder, mean pooling, a projection of random weights."""
  # The library wants a tokenizer.
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


def synchronize() -> None:
  if DEVICE == 'cuda':
    torch.cuda.synchronize()
