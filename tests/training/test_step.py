"""The train step: the same numbers on every mesh, and where its arrays lie."""

import dataclasses
import functools

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_training

from dualenc_jax import losses
from dualenc_jax.objectives import contrastive
from dualenc_jax.parallel import partitioning
from dualenc_jax.training import Optimizer, Partitioner, step as step_lib

FSDP = (('embed', 'data'),)
# Float32 rounding: sums over devices run in another order. Each sum is off by
# some 1e-7 of its terms, and the loss divides cosines by a temperature of 0.1.
LOSS_TOLERANCE = 2e-6
GRADIENT_TOLERANCE = 1e-5


@functools.cache
def on_one_device(separate_towers, num_negatives):
  """Loss, gradients and updated parameters by plain JAX, without a mesh."""
  model = tiny_training.make_model(separate_towers)
  params = tiny_training.unsharded_params(separate_towers)
  batch = tiny_training.make_batch(num_negatives=num_negatives)

  def loss_fn(params):
    embeddings = contrastive.embed(model, params, batch)
    return losses.evaluate(
        tiny_training.LOSS, tiny_training.SIMILARITY, params['loss'], embeddings
    )[0]

  loss, gradients = jax.jit(jax.value_and_grad(loss_fn))(params)
  loss, gradients = jax.device_get((loss, gradients))
  updated = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
  return loss, gradients, updated


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    'separate_towers, num_negatives, partitioner',
    [
        pytest.param(
            False, 0, tiny_training.OneDevice(), id='SDE-1x1', marks=SLOW
        ),
        pytest.param(False, 0, Partitioner(), id='SDE-8x1', marks=SLOW),
        pytest.param(False, 0, Partitioner(2), id='SDE-4x2', marks=SLOW),
        pytest.param(False, 0, Partitioner(4), id='SDE-2x4', marks=SLOW),
        pytest.param(
            False, 0, Partitioner(1, FSDP), id='SDE-8x1-FSDP', marks=SLOW
        ),
        pytest.param(False, 0, Partitioner(1, (), True), id='SDE-8x1-ZeRO'),
        pytest.param(
            True, 2, Partitioner(2, FSDP, True), id='ADE-SPL-4x2-FSDP-ZeRO',
            marks=SLOW,
        ),
        pytest.param(True, 2, Partitioner(), id='ADE-SPL-8x1', marks=SLOW),
        pytest.param(True, 2, Partitioner(2), id='ADE-SPL-4x2', marks=SLOW),
        pytest.param(True, 2, Partitioner(4), id='ADE-SPL-2x4', marks=SLOW),
        pytest.param(True, 2, Partitioner(2, FSDP), id='ADE-SPL-4x2-FSDP'),
    ],
)
def test_equal_on_every_mesh(separate_towers, num_negatives, partitioner):
  model = tiny_training.make_model(separate_towers)
  abstract, _, step = tiny_training.plan(partitioner, model=model)
  state = tiny_training.make_state(abstract, separate_towers)
  batch = tiny_training.make_batch(num_negatives=num_negatives)
  state, metrics = step(state, partitioner.to_device(batch))
  loss, gradients, updated = on_one_device(separate_towers, num_negatives)

  assert jax.tree.map(lambda a: a.sharding, state) == jax.tree.map(
      lambda a: a.sharding, abstract
  )
  np.testing.assert_allclose(metrics['loss'], loss, rtol=LOSS_TOLERANCE)
  assert state.step == 1
  paths = partitioning.leaf_paths(gradients)
  squares = []
  for path, got, want, after, expected in zip(
      paths, jax.tree.leaves(state.opt_state), jax.tree.leaves(gradients),
      jax.tree.leaves(state.params), jax.tree.leaves(updated), strict=True,
  ):
    scale = np.max(np.abs(want))
    assert scale > 0, path
    error = np.max(np.abs(got - want)) / scale
    assert error < GRADIENT_TOLERANCE, f'{path}: {error:.2e}'
    np.testing.assert_allclose(
        after, expected, rtol=1e-6, atol=GRADIENT_TOLERANCE * scale
    )
    squares.append(np.sum(np.square(want.astype(np.float64))))
  np.testing.assert_allclose(metrics['gradient_squares'], squares, rtol=1e-4)
  np.testing.assert_allclose(
      metrics['gradient_norm'], np.sqrt(np.sum(squares)), rtol=1e-5
  )


def shard_shapes(tree):
  return {
      path: array.addressable_shards[0].data.shape
      for path, array in zip(
          partitioning.leaf_paths(tree), jax.tree.leaves(tree)
      )
  }


@pytest.mark.parametrize(
    'partitioner, table, wi, scale',
    [
        (Partitioner(1), (64, 32), (32, 64), (32,)),
        (Partitioner(4), (16, 32), (32, 16), (32,)),
        (Partitioner(2, FSDP), (32, 8), (8, 32), (8,)),
    ],
    ids=['8x1', '2x4', '4x2-FSDP'],
)
def test_parameters_and_moments_are_split(partitioner, table, wi, scale):
  optimizer = Optimizer(optax.adamw(1e-3), lambda step: 1e-3)
  _, init, _ = tiny_training.plan(partitioner, optimizer)
  state = init()
  wanted = {
      'token_embedder/embedding': table,
      'encoder/layers_1/mlp/wi_0/kernel': wi,
      'encoder/encoder_norm/scale': scale,
      'loss/log_temperature': (),
  }
  adam = state.opt_state[0]
  for tree in (state.params, adam.mu, adam.nu):
    shapes = shard_shapes(tree)
    assert wanted == {path: shapes[path] for path in wanted}
  assert state.step.sharding.is_fully_replicated
  # The numbers do not depend on the mesh.
  jax.tree.map(
      np.testing.assert_array_equal,
      state.params,
      tiny_training.unsharded_params(),
  )


@pytest.mark.parametrize(
    'partitioner, wi',
    [(Partitioner(1, (), True), (4, 64)),
     (Partitioner(2, FSDP, True), (8, 32))],
    ids=['8x1', '4x2-FSDP'],
)
def test_moments_are_split_further_than_parameters(partitioner, wi):
  optimizer = Optimizer(optax.adamw(1e-3), lambda step: 1e-3)
  abstract, init, step = tiny_training.plan(partitioner, optimizer)
  batch = partitioner.to_device(tiny_training.make_batch())
  program = step.lower(abstract, batch).compile()
  state, _ = program(init(), batch)
  kernel = 'encoder/layers_1/mlp/wi_0/kernel'
  for tree in (state.opt_state[0].mu, state.opt_state[0].nu):
    assert shard_shapes(tree)[kernel] == wi
  plain = dataclasses.replace(partitioner, shard_optimizer=False)
  wanted, _, _ = tiny_training.plan(plain, optimizer)
  assert [*shard_shapes(state.params).values()] == [
      leaf.sharding.shard_shape(leaf.shape)
      for leaf in jax.tree.leaves(wanted.params)
  ]
  # No more of the parameters is gathered than there is.
  gathered = hlo.sent_bytes(program.as_text(), 'all-gather')
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
  assert gathered < 1.5 * size


def test_unfactored_adafactor_statistics_are_split_with_their_parameter():
  optimizer = Optimizer(optax.adafactor(1e-3), lambda step: 1e-3)
  abstract, _, _ = tiny_training.plan(Partitioner(2, FSDP), optimizer)
  v = abstract.opt_state[0].v
  kernel = v['encoder']['layers_1']['mlp']['wi_0']['kernel']
  assert kernel.sharding.shard_shape(kernel.shape) == (8, 32)


def test_frozen_parameters_stay_bit_equal_while_training():
  partitioner = Partitioner(2)
  optimizer = Optimizer(
      optax.adafactor(0.01),
      lambda step: 0.01 * (step + 1),
      freeze=('token_embedder/.*', 'encoder/layers_0/.*'),
      multipliers=(('projection/.*', 0.0),),
  )
  abstract, _, step = tiny_training.plan(partitioner, optimizer)
  state = tiny_training.make_state(abstract)
  before = tiny_training.unsharded_params()
  kept = partitioning.leaf_paths(state.opt_state)
  assert not [p for p in kept if 'token_embedder' in p or 'layers_0' in p]
  assert [p for p in kept if 'layers_1' in p]
  for k in range(3):
    batch = tiny_training.make_batch(seed=k)
    state, metrics = step(state, partitioner.to_device(batch))
    np.testing.assert_allclose(metrics['learning_rate'], 0.01 * (k + 1))
    np.testing.assert_array_less(0, metrics['gradient_squares'])
  still = ('token_embedder/', 'encoder/layers_0/', 'projection/')
  for path, a, b in zip(
      partitioning.leaf_paths(before),
      jax.tree.leaves(before),
      jax.tree.leaves(jax.device_get(state.params)),
  ):
    assert (a.tobytes() == b.tobytes()) == path.startswith(still), path


def test_a_loss_that_is_not_finite_names_the_loss_and_the_gradients():
  partitioner = Partitioner()
  abstract, _, step = tiny_training.plan(partitioner)
  paths = partitioning.leaf_paths(abstract.params)
  batch = partitioner.to_device(tiny_training.make_batch())
  state, metrics = step(tiny_training.make_state(abstract), batch)
  assert step_lib.non_finite_tensors(jax.device_get(metrics), paths) == []

  kernel = state.params['projection']['kernel']
  state.params['projection']['kernel'] = kernel.at[0, 0].set(jnp.nan)
  _, metrics = step(state, batch)
  bad = step_lib.non_finite_tensors(jax.device_get(metrics), paths)
  assert bad[0] == 'the loss'
  assert 'the gradient of projection/kernel' in bad


def test_the_one_gradient_that_is_not_finite_is_named():
  paths = ['a/kernel', 'b/kernel', 'c/scale']
  metrics = {
      'loss': np.float32(1),
      'gradient_squares': np.float32([1, 2, 3]),
      'finite': np.ones(3, bool),
  }
  assert step_lib.non_finite_tensors(metrics, paths) == []
  for value in (np.nan, np.inf):
    metrics['gradient_squares'] = np.float32([1, value, 3])
    assert step_lib.non_finite_tensors(metrics, paths) == [
        'the gradient of b/kernel'
    ]
  metrics |= {'loss': np.float32(np.inf), 'gradient_squares': np.ones(3)}
  assert step_lib.non_finite_tensors(metrics, paths) == ['the loss']


def test_hard_negatives_are_those_of_their_query():
  model = tiny_training.make_model()
  params = tiny_training.unsharded_params()
  batch = tiny_training.make_tokens(size=4, num_negatives=3)
  embed = jax.jit(lambda batch: contrastive.embed(model, params, batch))
  embeddings = embed(tiny_training.padded(batch))
  encode = jax.jit(
      lambda tokens: model.apply(
          {'params': {k: v for k, v in params.items() if k != 'loss'}},
          tokens,
          method='encode_passage',
      )
  )
  for i in range(4):
    for k in range(3):
      alone = encode(batch['negative_tokens'][i, k][None])[0]
      np.testing.assert_allclose(embeddings.negatives[i, k], alone, atol=1e-5)
    alone = encode(batch['passage_tokens'][i][None])[0]
    np.testing.assert_allclose(embeddings.passage[i], alone, atol=1e-5)
  want = np.ones((4, 3), bool)
  want[1, 2] = False
  np.testing.assert_array_equal(embeddings.negative_valid, want)
  np.testing.assert_array_equal(embeddings.negative_ids, batch['negative_ids'])
