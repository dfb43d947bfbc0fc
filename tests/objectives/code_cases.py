"""A small codec with two codebooks, and batches of queries over its codes."""

import functools

import jax
import numpy as np
import tiny_training

from dualenc_jax.models import model_params
from dualenc_jax.retrieval.compression import (
  Codec,
  codec as codec_lib,
  model_codec,
)
from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import pack

BATCH, DIM, PARTS = 8, 16, 4
# 61 passages in 64 rows.
TOTAL, THERE = 64, 61


def write_codec(folder, bits=3, rotated=True, seed=0):
  """A codec with two codebooks that differ; its folder."""
  rng = np.random.default_rng(seed)
  shape = PARTS, 2**bits, DIM // PARTS
  assign = 0.3 * rng.normal(size=shape).astype(np.float32)
  score = assign + 0.1 * rng.normal(size=shape).astype(np.float32)
  rotation = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)
  codec = Codec(
      f'opq:{PARTS}x{bits}' if rotated else f'pq:{PARTS}x{bits}', DIM,
      [Linear(rotation)] if rotated else [], Product(assign, score),
  )
  codec_lib.save(folder / codec_lib.FILE, codec)
  return str(folder)


def start(kind, folder, bits=3, rotated=True, **options):
  """An objective over a new codec, its parameters, a batch and its codes."""
  model = tiny_training.make_model(separate_towers=True)
  objective = kind(model, write_codec(folder, bits, rotated), **options)
  params = tiny_training.init_params(model)
  del params['loss']
  params['codec'] = model_codec.arrays(objective.frozen_passages.codec)
  return objective, params, *make_batch(bits)


def make_batch(bits, seed=0):
  """Some queries have several passages; the first stands in for the others."""
  rng = np.random.default_rng(seed)
  batch = tiny_training.make_batch(BATCH)
  numbers = rng.integers(0, 2**bits, (TOTAL, PARTS))
  targets = rng.integers(0, THERE, (BATCH, 3)).astype(np.int32)
  targets[::2, 1:] = targets[::2, :1]
  targets[1::4, 2] = targets[1::4, 0]
  return {
      'queries': batch['queries'],
      'numbers': np.arange(BATCH, dtype=np.uint32),
      'targets': targets,
      'codes': pack(numbers, bits),
      'code_valid': np.arange(TOTAL) < THERE,
  }, numbers


def embed(objective, params, batch):
  """float64 [B, D]: queries as the model embeds them, without dropout."""
  tokens = batch['queries'].tokens[:, 0]
  found = _encode(objective.model, model_params(params), tokens)
  return np.asarray(found, np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _encode(model, params, tokens):
  return model.apply({'params': params}, tokens, method='encode_query')
