"""Small programs as the TPU's compiler has them."""

import re

import jax
import jax.numpy as jnp
import pytest
import tiny_run

from dualenc_jax import losses
from dualenc_jax.cli import main as cli
from dualenc_jax.forecast import slices
from dualenc_jax.retrieval.search.search_programs import Programs
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.slow
# More scores than fit the units' own memory.
QUERIES, ROWS, DIM, KEPT = 256, 2**17, 64, 44


def check(capsys, tmp_path, *flags, status=0):
  argv = tiny_run.flags(tmp_path, '--gin.DROPOUT_RATE=0.0', *flags)
  assert cli.main(['check', *argv]) == status
  return capsys.readouterr()


def test_a_step_with_a_ring_and_what_it_needs(capsys, tmp_path):
  flags = '--topology=v5e:2x2', '--gin.LOSS_IMPLEMENTATION=ring'
  said = check(capsys, tmp_path, *flags).out
  assert 'Devices: 4 TPU v5 lite on 1 host(s), mesh data 4 x model 1.' in said
  assert 'The train step on v5e:2x2, compiled by libtpu 0' in said

  def size(of):
    return float(re.search(rf'\n  {of} +(?:\d+ +)?([\d.]+)', said)[1])

  assert size('collective-permute') and size('all-gather')
  # Gradients are summed once, in float32, as the parameters are.
  assert 0.9 * size('parameters') < size('reduce-scatter')
  assert size('reduce-scatter') + size('all-reduce') < 1.1 * size('parameters')
  assert 10 < size('peak') < 60
  assert said.endswith('The step fits v5e:2x2.\n')


def test_no_hop_of_a_ring_is_waited_for():
  """On a slice where JAX's own order has no ring: rows of eight chips."""
  on = slices.find_slice('v5e:8x8')
  partitioner = slices.on_slice(Partitioner(), on)
  similarity = losses.Similarity(implementation='ring')
  size = 64 * 64

  def value(vectors):
    with partitioner.scope():
      batch = losses.Embeddings(**vectors, **{
          f'{name}_ids': jnp.zeros((size, 2), jnp.uint32) for name in vectors
      })
      return losses.evaluate(losses.InBatchSoftmax(), similarity, {}, batch)[0]

  abstract = jax.ShapeDtypeStruct(
      (size, 128), jnp.float32, sharding=partitioner.rows
  )
  vectors = {'query': abstract, 'passage': abstract}
  text = jax.jit(jax.grad(value)).lower(vectors).compile().as_text()
  assert 'collective-permute-start(' in text
  assert ' collective-permute(' not in text


@pytest.mark.nightly
def test_scores_of_a_search_are_there_once():
  """No copy of them, in the order of queries or of groups, stands beside."""
  run = Programs(tuple(slices.find_slice('v5e:2x2').devices))
  compiled = run.lower(ROWS, QUERIES, DIM, KEPT).compile()
  temporaries = compiled.memory_analysis().temp_size_in_bytes
  scores = 4 * QUERIES * ROWS
  assert scores <= temporaries < 1.5 * scores
