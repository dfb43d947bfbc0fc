"""One of two hosts that train together; a script that test_multihost starts.

Usage: two_hosts.py ADDRESS HOST FOLDER, HOST 0 or 1. Writes FOLDER/HOST.json
and, with the other one, checkpoints in FOLDER/MODEL_PARALLEL.
"""

import dataclasses
import json
import pathlib
import sys

import jax
import text_reading
import tiny_training

from dualenc_jax.data import Batches, Packed
from dualenc_jax.training import Partitioner
from dualenc_jax.training.checkpoints import Checkpoints

# Two devices a host: the model axis within a host, and across both.
MODEL_PARALLEL = (2, 4)
STEPS = 2
BATCH_SIZE = 8


def padded_batch(step):
  """The rows that all hosts together feed at a step, one text a row."""
  return tiny_training.make_batch(BATCH_SIZE, num_negatives=1, seed=step)


def packed_batches(cells):
  """Batches of a cache, in the packed layout."""
  cache = text_reading.random_cache(40, 0, 6, 10)
  for name in ('query', 'passage', 'negative'):
    values = getattr(cache, f'{name}_tokens').values
    values[:] = values % (tiny_training.VOCAB - 2) + 2
  return Batches(
      [cache], BATCH_SIZE, 0, 6, 10, 1, layout=Packed(), cells=cells
  )


def train(partitioner, feed, implementation):
  """Takes STEPS steps; `feed` gives this host's part of the batch of a step.

  Returns:
    The losses and the last state.
  """
  similarity = dataclasses.replace(
      tiny_training.SIMILARITY, implementation=implementation
  )
  abstract, _, step = tiny_training.plan(partitioner, similarity=similarity)
  state = tiny_training.make_state(abstract)
  losses = []
  for i in range(STEPS):
    state, metrics = step(state, partitioner.to_device(feed(i)))
    losses.append(float(metrics['loss']))
  return losses, state


def main(address: str, host: str, folder: str) -> None:
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(address, 2, int(host))
  assert jax.device_count() == 4 and jax.local_device_count() == 2
  results = {}
  for model_parallel in MODEL_PARALLEL:
    partitioner = Partitioner(model_parallel)
    rows = partitioner.host_rows(BATCH_SIZE)
    losses, state = train(
        partitioner,
        lambda i: jax.tree.map(lambda x: x[rows], padded_batch(i)),
        'ring',
    )
    checkpoints = Checkpoints(pathlib.Path(folder) / str(model_parallel))
    checkpoints.save(state, STEPS, {'config': ''})
    checkpoints.wait()
    batches = packed_batches(cells=partitioner.mesh.shape['data'])
    cells = partitioner.host_rows(batches.cells)
    packed, _ = train(partitioner, lambda i: batches(i, cells), 'ring')
    results[model_parallel] = {
        'rows': rows.tolist(),
        'losses': losses,
        'cells': cells.tolist(),
        'packed': packed,
    }
  pathlib.Path(folder, f'{host}.json').write_text(json.dumps(results))


if __name__ == '__main__':
  main(*sys.argv[1:])
