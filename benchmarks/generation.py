"""Query generation beside transformers' `generate`, on the same weights.

  python generation.py --size=mini --passages=128 --length=24
  python generation.py --size=small --sides=ours,uncached

Both sides sample (temperature 1, top-k 25, top-p 0.95) from random T5s 1.1, so
that every query is as long as --length says: tokens a second are those of
decoding alone, without what refilled slots save. Passages have 40 to 120
tokens. transformers decodes batches of --batch rows, sorted by length; uncached
is ours without keys and values of the source that are kept, which every step
computes again, as T5X does. Peak memory is the process's: give one side for it.
"""

import argparse
import json
import resource
import time
from unittest import mock

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from dualenc_jax.commands import runtime
from dualenc_jax.generation.sampling import Sampling
from dualenc_jax.generation.writer import Writer
from dualenc_jax.models import (
  Seq2Seq,
  t5_decoder,
  T5Decoder,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.parallel.partitioning import HostPartitioner
from dualenc_jax.text.ragged import Ragged

# Layers, heads, head_dim, mlp_dim, E.
SIZES = {'mini': (4, 4, 64, 512, 256), 'small': (8, 6, 64, 1024, 512)}
VOCAB = 32128


def theirs(args, rows):
  layers, heads, head, hidden, width = SIZES[args.size]
  torch.manual_seed(0)
  torch.set_num_threads(args.threads)
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
  order = sorted(range(len(rows)), key=lambda i: len(rows[i]))

  def generate():
    tokens = 0
    each = max(args.batch // args.queries, 1)
    for start in range(0, len(order), each):
      batch = [rows[i] for i in order[start : start + each]]
      size = max(map(len, batch))
      ids = torch.tensor([[*r, *[0] * (size - len(r))] for r in batch])
      found = model.generate(
          ids,
          attention_mask=(ids != 0).long(),
          do_sample=True,
          top_k=25,
          top_p=0.95,
          num_return_sequences=args.queries,
          max_new_tokens=args.length,
          min_new_tokens=args.length,
      )
      tokens += found.numel() - len(found)
    return tokens

  return generate


def ours(args, rows):
  layers, heads, head, hidden, width = SIZES[args.size]
  sizes = layers, heads, head, hidden
  model = Seq2Seq(
      TokenEmbedder(VOCAB, width),
      T5Encoder(*sizes),
      T5Decoder(width, *sizes, VOCAB),
  )
  params = model.init(jax.random.key(0), np.ones((1, 2), np.int32))['params']
  params = jax.device_put(nn.unbox(params))
  # EOS is never drawn.
  kernel = params['decoder']['logits_dense']['kernel']
  params['decoder']['logits_dense']['kernel'] = kernel.at[:, 1].set(0)
  writer = Writer(model, HostPartitioner(), args.batch)
  texts = Ragged.from_rows(rows, np.int32)
  numbers = np.arange(len(rows), dtype=np.uint64)

  def generate():
    return sum(
        len(text.tokens)
        for text in writer.write(
            params, texts, numbers, args.queries, Sampling(), args.length
        )
    )

  return generate


def uncached(args, rows):
  """Ours, but each step has the encoder's output for keys and values."""

  def start(self, encoded, length, targets=1):
    shape = (
        len(encoded) * targets, length, self.num_heads, self.head_dim
    )
    zeros = jnp.zeros(shape, self.dtype)
    # As one head, whose values are not there.
    one = encoded[:, :, None]
    cache = t5_decoder.Cache(zeros, zeros, one, one[:, :, :0])
    return [cache for _ in self.layers]

  after = t5_decoder.DecoderLayer._after

  def project(self, x, source, *rest):
    # A term that is 0 keeps XLA from doing it once a program.
    encoded = source[0][:, :, 0] + 0.0 * jnp.sum(x)
    attention = self.encoder_decoder_attention
    return after(self, x, attention.keys_and_values(encoded), *rest)

  generate = ours(args, rows)

  def patched():
    with (
        mock.patch.object(t5_decoder.T5Decoder, 'start', start),
        mock.patch.object(t5_decoder.DecoderLayer, '_after', project),
    ):
      return generate()

  return patched


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--size', choices=SIZES, default='mini')
  add('--passages', type=int, default=128)
  add('--queries', type=int, default=4)
  add('--length', type=int, default=24)
  add('--batch', type=int, default=64)
  add('--threads', type=int, default=2)
  add('--rounds', type=int, default=2)
  add('--sides', default='ours,theirs')
  args = parser.parse_args()
  runtime.keep_freed_memory()
  rng = np.random.default_rng(0)
  rows = [
      [*rng.integers(2, 32000, size).tolist(), 1]
      for size in rng.integers(40, 120, args.passages)
  ]
  sides = {
      name: {'ours': ours, 'uncached': uncached, 'theirs': theirs}[name](
          args, rows
      )
      for name in args.sides.split(',')
  }
  print(jax.devices()[0].device_kind, jax.__version__, flush=True)
  for name, generate in sides.items():
    if name != 'theirs':
      generate()  # Compiles.
    best = 0.0
    for _ in range(args.rounds):
      start = time.perf_counter()
      tokens = generate()
      best = max(best, tokens / (time.perf_counter() - start))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        json.dumps({
            'side': name,
            'size': args.size,
            'tokens/s': best,
            'peak MiB': peak,
        }),
        flush=True,
    )


if __name__ == '__main__':
  main()
