"""Options of the encoder that change how it computes, and dropout."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.models import t5_encoder

DEPTH, B, L, E = 2, 4, 10, 24


def make(**options):
  sizes = dict(num_layers=DEPTH, num_heads=3, head_dim=16, mlp_dim=40)
  return t5_encoder.T5Encoder(**(sizes | options))


LENGTHS = np.array([10, 7, 2, 1], np.int32)[:, None]
MASK = np.arange(L) < LENGTHS


def inputs():
  return jax.random.normal(jax.random.key(0), (B, L, E)), jnp.asarray(LENGTHS)


@functools.cache
def random_params(**options):
  """Random parameters, matrices around zero and scales around one."""
  variables = jax.eval_shape(make(**options).init, jax.random.key(0), *inputs())
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda x: rng.normal(x.ndim == 1, 0.2, x.shape).astype(np.float32),
      nn.unbox(variables['params']),
  )


def stack_layers(params):
  """The layout of scan_layers from the unscanned one."""
  unstacked = [params[f'layers_{i}'] for i in range(DEPTH)]
  stacked = jax.tree.map(lambda *xs: np.stack(xs), *unstacked)
  rest = {k: v for k, v in params.items() if not k.startswith('layers_')}
  return rest | {'layers': stacked}


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(encoder, params, dropout_key=None):
  x, lengths = inputs()
  direction = jax.random.normal(jax.random.key(3), (B, L, E))

  def scalar(params):
    encoded = encoder.apply(
        {'params': params},
        x,
        lengths,
        None if dropout_key is None else jnp.arange(B)[:, None],
        rngs={} if dropout_key is None else {'dropout': dropout_key},
    )
    encoded = jnp.where(MASK[:, :, None], encoded, 0.0)
    return jnp.sum(encoded * direction), encoded

  (_, encoded), gradient = jax.value_and_grad(scalar, has_aux=True)(params)
  return encoded, gradient


def assert_close(actual, expected, atol=1e-5):
  """Equal trees, to `atol` of each array's largest entry."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for (path, a), b in zip(
      jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(
        a, b, rtol=0, atol=atol * np.abs(b).max(),
        err_msg=jax.tree_util.keystr(path),
    )


@pytest.mark.parametrize('options', [{}, {'bias_per_layer': True}])
def test_a_scan_with_remat_changes_neither_values_nor_gradients(options):
  params = random_params(**options)
  expected, expected_gradient = value_and_gradient(make(**options), params)
  encoded, gradient = value_and_gradient(
      make(scan_layers=True, remat=True, **options), stack_layers(params)
  )
  assert_close(encoded, expected)
  assert_close(gradient, stack_layers(expected_gradient))


def test_layers_with_biases_of_their_own_compute_the_same_if_all_are_equal():
  params = {**random_params()}
  shared, _ = value_and_gradient(make(), params)
  bias = params.pop('relpos_bias')
  for i in range(DEPTH):
    params[f'layers_{i}'] = {**params[f'layers_{i}'], 'relpos_bias': bias}
  own, gradient = value_and_gradient(make(bias_per_layer=True), params)
  np.testing.assert_array_equal(own, shared)
  slopes = [
      gradient[f'layers_{i}']['relpos_bias']['rel_embedding']
      for i in range(DEPTH)
  ]
  assert np.abs(slopes[0] - slopes[1]).max() > 0.1 * np.abs(slopes).max()


def test_texts_of_a_row_are_encoded_as_alone_by_biases_of_layers():
  model, params = make(bias_per_layer=True), random_params(bias_per_layer=True)
  encode = jax.jit(model.apply)
  x, _ = inputs()
  row = encode({'params': params}, x[:1], np.array([[6, 3]]))[0]
  for start, length in ((0, 6), (6, 3)):
    text = jnp.zeros((1, L, E)).at[0, :length].set(x[0, start : start + length])
    alone = encode({'params': params}, text, np.array([[length, 0]]))[0]
    assert_close(row[start : start + length], alone[:length])


def test_scanned_parameters_have_the_stacked_layout_and_axis_name():
  variables = jax.jit(make(scan_layers=True).init)(jax.random.key(0), *inputs())
  stacked = stack_layers(random_params())
  assert jax.tree.map(jnp.shape, nn.unbox(variables['params'])) == (
      jax.tree.map(jnp.shape, stacked)
  )
  kernel = variables['params']['layers']['mlp']['wi_0']['kernel']
  assert kernel.names == ('layers', 'embed', 'mlp')
  # Every layer is initialised with a key of its own.
  assert not np.allclose(kernel.unbox()[0], kernel.unbox()[1])


def test_remat_draws_the_same_dropout():
  options = dict(dropout_rate=0.2, scan_layers=True)
  params = stack_layers(random_params())
  key = jax.random.key(5)
  plain = value_and_gradient(make(**options), params, key)
  remat = value_and_gradient(make(**options, remat=True), params, key)
  assert_close(remat, plain)
  other, _ = value_and_gradient(make(**options), params, jax.random.key(6))
  assert np.abs(plain[0] - other).max() > 0.1


def test_bfloat16_is_near_float32_and_keeps_float32_parameters():
  params = random_params()
  rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)

  def encode(dtype, params):
    apply = jax.jit(make(dtype=dtype).apply)
    encoded = apply({'params': params}, *inputs())
    assert encoded.dtype == dtype
    return np.asarray(encoded, np.float64)[MASK]

  def distance_to_float32(encoded):
    return np.linalg.norm(encoded - expected) / np.linalg.norm(expected)

  expected = encode('float32', params)
  initial = jax.eval_shape(
      make(dtype='bfloat16').init, jax.random.key(0), *inputs()
  )
  assert {x.dtype for x in jax.tree.leaves(initial)} == {jnp.dtype('float32')}
  # What rounding the weights alone costs tells how well conditioned these
  # layers are. bfloat16 also rounds the two operands and the result of each
  # product: some sqrt(3) times that when independent, 3 times at worst.
  yardstick = distance_to_float32(encode('float32', rounded))
  assert yardstick < 0.02
  assert 0 < distance_to_float32(encode('bfloat16', params)) < 3 * yardstick
