"""Losses compiled at full size; run as a script, it prints what they need.

Usage: loss_programs.py, on as many devices as there are. Prints JSON: bytes of
temporaries a device of the ring.
"""

import json

import jax
import meshes

from dualenc_jax.losses import evaluate, SamToNe, Similarity
from dualenc_jax.training import Partitioner

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


def main() -> None:
  devices, loss = jax.device_count(), SamToNe(both_towers=True)
  program = compile_gradient(loss, 'ring', Partitioner(), SHARD * devices)
  print(json.dumps({'devices': devices, 'temporaries': temporaries(program)}))


if __name__ == '__main__':
  main()
