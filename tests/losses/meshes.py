"""Losses on meshes of some of the devices."""

import jax
from jax.experimental.compilation_cache import compilation_cache
from loss_cases import make, values_and_gradients
import numpy as np
import pytest
from small_mesh import SmallPartitioner as SmallPartitioner

from dualenc_jax.losses import Embeddings


@pytest.fixture(autouse=True)
def without_kept_programs():
  """Compiles afresh.

  For the reason that `runtime.use_compilation_cache` gives.
  """
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()
  yield
  jax.config.update('jax_enable_compilation_cache', True)
  compilation_cache.reset_cache()


def on_mesh(partitioner, function):
  """Jits function(params, embeddings), rows over the data axis if any."""
  if partitioner is None:
    return jax.jit(function)

  def scoped(params, embeddings):
    with partitioner.scope():
      return function(params, embeddings)

  shardings = partitioner.replicated, partitioner.rows
  return jax.jit(scoped, in_shardings=shardings)


def program(partitioner, names, **options):
  """`values_and_gradients` of the losses of these names, on a mesh."""
  losses = {name: make(name, **options) for name in names}
  return on_mesh(partitioner, values_and_gradients(losses))


def abstract_embeddings(size, dim, num_negatives=0, sharding=None):
  """Shapes of a batch with fingerprints; nothing is allocated."""

  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  vectors = array(np.float32, size, dim)
  ids = array(np.uint32, size, 2)
  result = Embeddings(vectors, vectors, query_ids=ids, passage_ids=ids)
  if not num_negatives:
    return result
  return result._replace(
      negatives=array(np.float32, size, num_negatives, dim),
      negative_ids=array(np.uint32, size, num_negatives, 2),
      negative_valid=array(bool, size, num_negatives),
  )
