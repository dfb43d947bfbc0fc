"""Search as the TPU's compiler has it."""

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.compression.quantisers import Floats
from dualenc_jax.forecast import slices
from dualenc_jax.search.search_programs import Best, programs

QUERIES, ROWS, DIM, KEPT = 256, 2**17, 64, 44


@pytest.mark.slow
@pytest.mark.parametrize('of', ['vectors', 'codes'])
def test_scores_are_there_once(of):
  """No copy of them, in the order of queries or of groups, stands beside."""
  run = programs(tuple(slices.find('v5e:2x2').devices))
  count = run.devices

  def array(shape, dtype=jnp.float32, sharding=run.split):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def shared(*shape, dtype=jnp.float32):
    return array(shape, dtype, run.replicated)

  quantiser = Floats(DIM, 'bfloat16') if of == 'codes' else None
  block = array(
      (count * ROWS, DIM), jnp.float32 if quantiser is None else jnp.bfloat16
  )
  kept = count, QUERIES, KEPT
  best = Best(array(kept), array(kept, jnp.int32))
  args = shared(QUERIES, DIM), quantiser, shared(dtype=jnp.int32), None
  compiled = run.update_best.lower(best, block, *args).compile()
  temporaries = compiled.memory_analysis().temp_size_in_bytes
  scores = 4 * QUERIES * ROWS
  assert scores <= temporaries < 1.5 * scores
