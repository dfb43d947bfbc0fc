"""Query generation beside transformers' `generate`, on random weights.

  python generation.py --size=mini --passages=128 --length=24

Both sides sample (temperature 1, top-k 25, top-p 0.95) from random T5s 1.1, so
that every query is as long as --length says: tokens a second are those of
decoding alone, without what refilled slots save. Passages have 40 to 120
tokens. transformers decodes batches of --batch rows, sorted by length.
"""

import argparse
from collections.abc import Callable

import harness
import numpy as np

# Layers, heads, head_dim, mlp_dim, E.
SIZES = {'mini': (4, 4, 64, 512, 256), 'small': (8, 6, 64, 1024, 512)}
VOCAB = 32128


def main() -> None:
  parser = harness.parser(__doc__, malloc=False)
  add = parser.add_argument
  add('--size', choices=SIZES, default='mini')
  add('--passages', type=int, default=128)
  add('--queries', type=int, default=4)
  add('--length', type=int, default=24)
  add('--batch', type=int, default=64)
  args = parser.parse_args()
  if args.side is not None:
    harness.serve(Side(args))
    return
  commands = {'ours': harness.command('ours')}
  commands['theirs'] = harness.command('theirs', args.peer_python)
  tokens = args.passages * args.queries * args.length
  harness.compare(args, commands, tokens, 'tokens')


class Side(harness.Timed):
  """One of the two, with its model."""

  def __init__(self, args: argparse.Namespace):
    rng = np.random.default_rng(0)
    rows = [
        [*rng.integers(2, 32000, size).tolist(), 1]
        for size in rng.integers(40, 120, args.passages)
    ]
    self.work = (ours if args.side == 'ours' else theirs)(args, rows)


def theirs(args: argparse.Namespace, rows: list[list[int]]) -> Callable:
  import peer  # noqa: F401  Which sets the threads.
  import torch
  import transformers

  layers, heads, head, hidden, width = SIZES[args.size]
  torch.manual_seed(0)
  model = transformers.T5ForConditionalGeneration(
      transformers.T5Config(
          vocab_size=VOCAB,
          d_model=width,
          d_kv=head,
          d_ff=hidden,
          num_layers=layers,
          num_heads=heads,
          feed_forward_proj='gated-gelu',
          tie_word_embeddings=False,
          decoder_start_token_id=0,
      )
  ).eval()
  order = sorted(rows, key=len)
  each = max(args.batch // args.queries, 1)

  def generate():
    for start in range(0, len(order), each):
      batch = order[start : start + each]
      size = max(map(len, batch))
      ids = torch.tensor([[*r, *[0] * (size - len(r))] for r in batch])
      model.generate(
          ids,
          attention_mask=(ids != 0).long(),
          do_sample=True,
          top_k=25,
          top_p=0.95,
          num_return_sequences=args.queries,
          max_new_tokens=args.length,
          min_new_tokens=args.length,
      )

  return generate


def ours(args: argparse.Namespace, rows: list[list[int]]) -> Callable:
  from flax import linen as nn
  import jax
  import ours  # noqa: F401  Which sets JAX up.

  from dualenc_jax import models
  from dualenc_jax.data.text.ragged import Ragged
  from dualenc_jax.parallel.partitioning import HostPartitioner
  from dualenc_jax.pipelines.generation.sampling import Sampling
  from dualenc_jax.pipelines.generation.writer import Writer

  *sizes, width = SIZES[args.size]
  model = models.Seq2Seq(
      models.TokenEmbedder(VOCAB, width),
      models.T5Encoder(*sizes),
      models.T5Decoder(width, *sizes, VOCAB),
  )
  params = model.init(jax.random.key(0), np.ones((1, 2), np.int32))['params']
  params = jax.device_put(nn.unbox(params))
  # EOS is never drawn.
  kernel = params['decoder']['logits_dense']['kernel']
  params['decoder']['logits_dense']['kernel'] = kernel.at[:, 1].set(0)
  writer = Writer(model, HostPartitioner(), args.batch)
  texts = Ragged.from_rows(rows, np.int32)
  numbers = np.arange(len(rows), dtype=np.uint64)
  rest = args.queries, Sampling(), args.length
  return lambda: list(writer.write(params, texts, numbers, *rest))


if __name__ == '__main__':
  main()
