"""Which implementation computes a loss, and that it makes no difference."""

import math

import hlo
import jax
import jaxprs
import loss_cases
import meshes
import numpy as np
import pytest
import reference

from dualenc_jax.losses import blocks, evaluate
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

# The most rows and columns whose scores, float32, are not too many.
LARGEST = math.isqrt(blocks.DENSE_BYTES // 4 - 1)


def implementation_of(
    size, num_negatives=0, partitioner=None, name='softmax_two_way', **options
):
  """Told by the program: a ring has loops, and a shard_map on a mesh."""
  partitioner = partitioner or meshes.SmallPartitioner(devices=1)
  embeddings = meshes.abstract_embeddings(size, 4, num_negatives)
  with partitioner.scope():
    program = jax.make_jaxpr(
        lambda e: loss_cases.value_of(name, e, **options)[0]
    )(embeddings)
  names = {e.primitive.name for e, _ in jaxprs.equations(program.jaxpr)}
  loops = bool(names & {'scan', 'while'})
  if partitioner.mesh.size > 1:
    assert loops == ('shard_map' in names) == ('ppermute' in names)
  return 'ring' if loops else 'dense'


@pytest.mark.parametrize('implementation', ['dense', 'ring'])
def test_host_arrays_need_no_jit(implementation):
  embeddings, batch = loss_cases.make_batch(7, 1)
  assert type(embeddings.query) is type(embeddings.query_ids) is np.ndarray
  loss = loss_cases.make(
      'softmax_two_way', temperature=0.05, implementation=implementation
  )
  value, _ = evaluate(*loss, {}, embeddings)
  want = reference.evaluate(
      batch, reference.softmax_terms(batch, True, True),
      reference.Options(0.05),
  )
  np.testing.assert_allclose(value, want.value, rtol=1e-6)


def test_auto_takes_the_ring_for_scores_above_the_limit():
  assert implementation_of(LARGEST) == 'dense'
  assert implementation_of(LARGEST + 1) == 'ring'
  # All matrices count: three hard negatives make four of one.
  fourth = math.isqrt(blocks.DENSE_BYTES // 16 - 1)
  assert implementation_of(fourth, 3) == 'dense'
  assert implementation_of(fourth + 1, 3) == 'ring'
  both = {'name': 'samtone_both_towers'}
  third = math.isqrt(blocks.DENSE_BYTES // 12 - 1)
  assert implementation_of(third, **both) == 'dense'
  assert implementation_of(third + 1, **both) == 'ring'


def test_the_limit_is_that_of_a_device():
  partitioner, data = Partitioner(2), 4
  # These are all the devices that share the scores of dense:
  function = meshes.on_mesh(
      partitioner,
      lambda _, e: loss_cases.value_of(
          'softmax_two_way', e, implementation='dense'
      )[0],
  )
  program = function.lower({}, meshes.abstract_embeddings(64, 4)).compile()
  assert hlo.num_elements(program.as_text()) == 64 * 64 // data

  largest = math.isqrt(data * blocks.DENSE_BYTES // 4 - 1) // 8 * 8
  assert largest > 1.9 * LARGEST
  assert implementation_of(largest, 0, partitioner) == 'dense'
  assert implementation_of(largest + 8, 0, partitioner) == 'ring'
