"""Losses compiled at full size."""

import jax
import meshes

from dualenc_jax.losses import evaluate, Similarity

# A typical embedding, and pairs a device.
DIM = 768
SHARD = 1024


def compile_gradient(loss, implementation, partitioner, size):
  """Compiles value and gradient of the loss of `size` pairs; runs nothing."""
  similarity = Similarity(implementation=implementation)

  def value_and_gradient(vectors, embeddings):
    def value(vectors):
      return evaluate(loss, similarity, {}, embeddings._replace(**vectors))[0]

    with partitioner.scope():
      return jax.value_and_grad(value)(vectors)

  embeddings = meshes.abstract_embeddings(size, DIM, sharding=partitioner.rows)
  vectors = {'query': embeddings.query, 'passage': embeddings.passage}
  program = jax.jit(
      value_and_gradient,
      out_shardings=(partitioner.replicated, partitioner.rows),
  )
  return program.lower(vectors, embeddings).compile()


def temporaries(program):
  return program.memory_analysis().temp_size_in_bytes
