"""Negative caches for tests, and functions of them on meshes."""

import jax
import meshes
import numpy as np

from dualenc_jax.losses import negative_cache


def make_cache(size, features=8, length=3, seed=0):
  """Random unit vectors, and ages in any order."""
  rng = np.random.default_rng(seed)
  vectors = unit(rng.normal(size=(size, features)))
  return negative_cache.empty(size, length, features, 64)._replace(
      embeddings=vectors,
      tokens=rng.integers(1, 64, (size, length)).astype(np.uint16),
      ids=ids_of(np.arange(size)), age=rng.permutation(size).astype(np.int32),
  )


def unit(x):
  return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def ids_of(texts):
  """Fingerprints of numbered texts; many have one of their words in common."""
  return np.stack([texts % 3, texts // 3 % 5 + 10 * texts], -1).astype('uint32')


def on_devices(devices, function, rows, model_parallel=1, ahead=0):
  """Jits function(*arrays), whose leading axes go over the data axis.

  All devices have those `ahead` of them.
  """
  partitioner = meshes.SmallPartitioner(model_parallel, devices=devices)

  def scoped(*arrays):
    with partitioner.scope():
      return function(*arrays)

  return jax.jit(
      scoped,
      in_shardings=(partitioner.replicated,) * ahead
      + (partitioner.rows,) * rows,
  )
