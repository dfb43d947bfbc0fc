"""One batch gives one loss and one gradient on every mesh, dense or ring."""

import jax
from loss_cases import (
  all_duplicates,
  assert_nothing_is_learnt,
  check,
  make,
  make_batch,
  value_of,
  values_and_gradients,
)
import meshes
import numpy as np
import pytest

from dualenc_jax.losses import LearnableTemperature
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

SIZE = 16
TEMPERATURE = LearnableTemperature(0.05, minimum=0.001)

# The one-way losses are parts of these.
SOFTMAX = 'softmax_two_way', 'pair_union_two_way'
BOTH = 'samtone_both_towers', 'pair_two_way', 'pair_released_two_way'
SAMTONE = 'samtone_two_way', 'pair_without_positive_two_way'
# Losses, pairs, hard negatives and the tile, by mesh: numbers of devices and
# of negatives in pairs; shards that the tile divides, that it does not divide,
# and of one row each, whose batch does not divide among all eight devices.
# Every loss is on a ring, not on each; two devices are like eight.
RINGS = {
    '1': (meshes.SmallPartitioner(devices=1), SOFTMAX, 15, 0, 4),
    '2': (meshes.SmallPartitioner(devices=2), BOTH, 12, 1, 4),
    '3': (meshes.SmallPartitioner(devices=3), SAMTONE, 12, 0, 2),
    '8': (Partitioner(), BOTH[1:2], 24, 3, 2),
    '4x2': (Partitioner(2), BOTH[2:], 32, 1, 2),
    '4x2_over_data_of_one_row': (Partitioner(2), BOTH[:1], 4, 3, None),
}
NIGHTLY = '2', '8'


@pytest.mark.parametrize(
    'partitioner, names, size, num_negatives, tile',
    [
        pytest.param(
            *ring, id=name, marks=[pytest.mark.nightly] * (name in NIGHTLY)
        ) for name, ring in RINGS.items()
    ],
)
def test_ring_is_equal_to_the_reference(
    partitioner, names, size, num_negatives, tile
):
  program = meshes.program(
      partitioner, names, temperature=TEMPERATURE, implementation='ring',
      tile=tile,
  )

  def run(embeddings, params=TEMPERATURE.init()):
    return jax.device_get(program(params, embeddings))

  # Numbers change, the program does not: it is compiled once.
  for duplicates in (False, True):
    embeddings, batch = make_batch(size, num_negatives, duplicates)
    got = run(embeddings)
    for name in names:
      check(got[name], name, batch, temperature=0.05)
  assert_nothing_is_learnt(run(all_duplicates(embeddings)))
  check_extremes(run, embeddings, batch)


def check_extremes(run, embeddings, batch):
  """Cosines all but 1 and -1 at temperature 0.005: scores from -200 to 200."""
  rng = np.random.default_rng(0)
  direction = rng.normal(size=embeddings.query.shape[1])

  def extreme(x):
    x = direction + 1e-3 * rng.normal(size=x.shape)
    x *= rng.choice([-1, 1], x.shape[:-1] + (1,))
    return np.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))

  embeddings = embeddings.map_vectors(extreme)
  got = run(embeddings, {'log_temperature': np.log(np.float32(0.005))})
  batch.vectors |= {
      name: x.reshape(-1, x.shape[-1]).astype(np.float64)
      for name, x in embeddings.vectors().items()
  }
  for name, (result, (params, vectors)) in got.items():
    # A cosine is rounded at 1e-7, which makes 2e-5 of a score. The gradient
    # of the temperature is a difference of scores.
    want = check(
        (result, ({}, vectors)), name, batch, rounding=1e-4, tolerance=1e-3,
        temperature=0.005,
    )
    slope = params['log_temperature']
    assert abs(slope - want.gradients['log_temperature']) < 1e-3, name


@pytest.mark.parametrize(
    'implementation, shape',
    [('dense', {'data': 8}), ('ring', {'data': 4, 'model': 2})],
)
def test_a_mesh_with_explicit_axes(implementation, shape):
  # As a user of the library makes it, by JAX's defaults.
  mesh = jax.make_mesh(tuple(shape.values()), tuple(shape))
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Explicit}
  embeddings, batch = make_batch(SIZE, 1, duplicates=True)
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  embeddings = jax.device_put(embeddings, rows)
  name = 'softmax_two_way'

  @jax.jit
  def program(temperature, embeddings):
    loss = make(name, temperature=temperature, implementation=implementation)
    return values_and_gradients({name: loss})({}, embeddings)

  with jax.set_mesh(mesh):
    got = program(0.05, embeddings)
  check(jax.device_get(got)[name], name, batch, temperature=0.05)


def test_within_a_shard_map_of_ones_own_the_batch_is_the_shard():
  mesh = Partitioner().mesh
  embeddings, _ = make_batch(SIZE, 1)
  rows = jax.sharding.PartitionSpec('data')

  def local(implementation):
    def on_shard(shard):
      value, _ = value_of(
          'softmax_two_way', shard, implementation=implementation
      )
      return value[None]

    return jax.jit(
        jax.shard_map(on_shard, mesh=mesh, in_specs=rows, out_specs=rows)
    )

  dense, ring = local('dense')(embeddings), local('ring')(embeddings)
  first = jax.tree.map(lambda x: x[:2], embeddings)
  want, _ = value_of('softmax_two_way', first, implementation='dense')
  np.testing.assert_allclose(dense[0], want, rtol=1e-6)
  np.testing.assert_allclose(dense, ring, rtol=1e-6)
