"""Search as the TPU's compiler has it."""

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.forecast import slices
from dualenc_jax.search.search_programs import Best, programs

# More scores than fit the units' own memory.
QUERIES, ROWS, DIM, KEPT = 256, 2**17, 64, 44


@pytest.mark.slow
def test_scores_are_there_once():
  """No copy of them, in the order of queries or of groups, stands beside."""
  run = programs(tuple(slices.find('v5e:2x2').devices))
  count = run.devices

  def array(shape, dtype=jnp.float32, sharding=run.split):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def shared(*shape, dtype=jnp.float32):
    return array(shape, dtype, run.replicated)

  kept = count, QUERIES, KEPT
  best = Best(array(kept), array(kept, jnp.int32))
  compiled = run.update_best.lower(
      best,
      array((count * ROWS, DIM)),
      shared(QUERIES, DIM),
      None,
      shared(dtype=jnp.int32),
      None,
  ).compile()
  temporaries = compiled.memory_analysis().temp_size_in_bytes
  scores = 4 * QUERIES * ROWS
  assert scores <= temporaries < 1.5 * scores
