"""The train step: the same numbers on every mesh, and where its arrays lie."""

import dataclasses

from flax import linen as nn
import hlo
import jax
import numpy as np
import optax
import pytest
import tiny_training

from dualenc_jax import losses
from dualenc_jax.objectives import Contrastive, encoding
from dualenc_jax.parallel import partitioning
from dualenc_jax.training import Optimizer, Partitioner

pytestmark = pytest.mark.devices(8)

FSDP = (('embed', 'data'),)
# Float32 rounding: sums over devices run in another order. Each sum is off by
# some 1e-7 of its terms, and the loss divides cosines by a temperature of 0.1.
LOSS_TOLERANCE = 2e-6


def on_one_device(separate_towers, num_negatives):
  """Loss and gradients by plain JAX, without a mesh; and the parameters."""
  model = tiny_training.make_model(separate_towers)
  params = tiny_training.unsharded_params(separate_towers)
  batch = tiny_training.make_batch(num_negatives=num_negatives)

  def loss_fn(params):
    embeddings = encoding.embed(model, params, batch)
    return losses.evaluate(
        tiny_training.LOSS, tiny_training.SIMILARITY, params['loss'], embeddings
    )[0]

  loss, gradients = jax.jit(jax.value_and_grad(loss_fn))(params)
  return loss, jax.device_get(gradients), params


def shard_shapes(tree):
  return {
      path: array.addressable_shards[0].data.shape
      for path, array in zip(
          partitioning.leaf_paths(tree), jax.tree.leaves(tree)
      )
  }


@pytest.mark.parametrize(
    'separate_towers, num_negatives, partitioner, wi',
    [
        pytest.param(
            False, 0, Partitioner(1, (), True), (4, 64), id='8x1-ZeRO',
            marks=pytest.mark.nightly,
        ),
        pytest.param(True, 2, Partitioner(2, FSDP), (8, 32), id='4x2-FSDP'),
    ],
)
def test_equal_on_every_mesh(separate_towers, num_negatives, partitioner, wi):
  model = tiny_training.make_model(separate_towers)
  abstract, _, step, _ = tiny_training.plan(partitioner, model=model)
  state = tiny_training.make_state(abstract, separate_towers)
  batch = tiny_training.make_batch(num_negatives=num_negatives)
  batch = partitioner.to_device(batch)
  program = step.lower(abstract, batch).compile()
  state, metrics = program(state, batch)
  loss, gradients, params = on_one_device(separate_towers, num_negatives)

  assert jax.tree.map(lambda a: a.sharding, state) == jax.tree.map(
      lambda a: a.sharding, abstract
  )
  np.testing.assert_allclose(metrics['loss'], loss, rtol=LOSS_TOLERANCE)
  assert state.step == 1
  tiny_training.assert_gradients_near(state.opt_state[0].trace, gradients)
  jax.tree.map(
      lambda after, p, g: np.testing.assert_allclose(
          after, p - 0.1 * g, rtol=1e-6, atol=1e-5 * np.abs(g).max()
      ),
      state.params, params, gradients,
  )
  squares = [
      np.sum(np.square(g, dtype=np.float64)) for g in jax.tree.leaves(gradients)
  ]
  np.testing.assert_allclose(metrics['gradient_squares'], squares, rtol=1e-4)
  np.testing.assert_allclose(
      metrics['gradient_norm'], np.sqrt(np.sum(squares)), rtol=1e-5
  )
  assert np.all(metrics['finite'])

  trace = shard_shapes(state.opt_state[0].trace)
  assert trace['encoder/layers_0/mlp/wi_0/kernel'] == wi
  if partitioner.shard_optimizer:
    plain = dataclasses.replace(partitioner, shard_optimizer=False)
    wanted, *_ = tiny_training.plan(plain, model=model)
    assert [*shard_shapes(state.params).values()] == [
        leaf.sharding.shard_shape(leaf.shape)
        for leaf in jax.tree.leaves(wanted.params)
    ]
    # No more of the parameters is gathered than there is.
    gathered = hlo.sent_bytes(program.as_text(), 'all-gather')
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    assert gathered < 1.5 * size


def test_fresh_parameters_are_split_and_the_same_on_every_mesh():
  optimizer = Optimizer(optax.adamw(1e-3), lambda step: 1e-3)
  _, init, *_ = tiny_training.plan(Partitioner(2, FSDP), optimizer)
  state = init()
  adam = state.opt_state[0]
  for tree in (state.params, adam.mu, adam.nu):
    assert shard_shapes(tree)['token_embedder/embedding'] == (32, 8)
  objective = Contrastive(
      tiny_training.make_model(), tiny_training.LOSS, tiny_training.SIMILARITY
  )
  alone = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
  jax.tree.map(np.testing.assert_array_equal, state.params, alone)
