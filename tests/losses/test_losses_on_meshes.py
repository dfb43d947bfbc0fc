"""One batch gives one loss and one gradient on every mesh."""

import jax
from loss_cases import assert_gradients_close
from loss_cases import LOSSES
from loss_cases import make_batch
from loss_cases import values_and_gradients
import pytest
import reference

from dualenc_jax.losses import LearnableTemperature
from dualenc_jax.training import Partitioner

SIZE = 16
# The one-way losses are parts of these.
NAMES = [name for name in LOSSES if not name.endswith('one_way')]


@pytest.mark.parametrize('model_parallel', [1, 2, 4])
@pytest.mark.parametrize('num_negatives', [0, 1, 3])
def test_equal_to_the_reference_on_every_mesh(num_negatives, model_parallel):
  partitioner = Partitioner(model_parallel=model_parallel)
  data = 8 // model_parallel
  assert dict(partitioner.mesh.shape) == {'data': data, 'model': model_parallel}
  embeddings, batch = make_batch(SIZE, num_negatives, duplicates=True)
  embeddings = jax.device_put(embeddings, partitioner.rows)
  assert embeddings.query.addressable_shards[0].data.shape == (SIZE // data, 16)
  temperature = LearnableTemperature(0.05)
  program = jax.jit(
      values_and_gradients(
          {name: LOSSES[name][0](temperature=temperature) for name in NAMES}
      ),
      in_shardings=(partitioner.replicated, partitioner.rows),
      # Partitioned as ever, compiled in half the time.
      compiler_options={'xla_backend_optimization_level': 0},
  )
  got = jax.device_get(program(temperature.init(), embeddings))
  for name in NAMES:
    (value, metrics), (params, vectors) = got[name]
    sides = LOSSES[name][1](batch, True)
    want = reference.evaluate(batch, sides, reference.Options(0.05))
    assert abs(value - want.value) <= 1e-6 * want.value, name
    assert_gradients_close(params | vectors, want.gradients)
    assert metrics['loss'] == value
