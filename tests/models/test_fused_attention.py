"""The kernel at the sizes it is for, on a mesh, and for TPUs' compiler."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest
import small_mesh

from dualenc_jax.models import dot_product_attention, einsum_attention
from dualenc_jax.models.fused_attention import fits, fused_attention
from dualenc_jax.models.layers import Segments

pytestmark = pytest.mark.devices(8)

NAMES = 'out', 'query', 'key', 'value', 'bias'
RATE = 0.25


def make_inputs(rows, length, heads, head_dim, dtype='float32'):
  """Rows of two texts, and padding: inputs, mask, weights to keep, and dO."""
  rng = np.random.default_rng(0)
  shape = rows, length, heads, head_dim
  scales = head_dim**-0.5, 1.0, 1.0, 1.0
  query, key, value, direction = (
      jnp.asarray(scale * rng.normal(size=shape), dtype) for scale in scales
  )
  bias = jnp.asarray(rng.normal(size=(1, heads, length, length)), jnp.float32)
  lengths = np.stack([
      rng.integers(1, length // 2, rows), rng.integers(1, length // 2, rows)
  ], axis=1)
  segments = Segments.from_lengths(length, jnp.asarray(lengths))
  # No token of padding has a meaning, nor a gradient.
  real = (segments.slots < 2)[:, :, None, None]
  direction = jnp.where(real, direction, 0)
  keep = jnp.asarray(rng.random((rows, heads, 1, length)) >= RATE)
  mask = segments.attention_mask()
  return (query, key, value, bias), mask, keep, direction


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(attention_fn, inputs, mask, keep, direction):

  def scalar(*inputs):
    out = attention_fn(*inputs, mask, RATE, keep)
    return jnp.sum(out.astype(jnp.float32) * direction), out

  gradient = jax.grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)
  gradients, out = gradient(*inputs)
  # What padding attends to is of no meaning.
  return dict(zip(NAMES, (jnp.where(direction == 0, 0, out), *gradients)))


def in_float64(inputs, mask, keep, direction):
  """The same in NumPy, derived by hand."""
  query, key, value, bias, direction = (
      np.asarray(x, np.float64) for x in (*inputs, direction)
  )
  mask, keep = np.asarray(mask), np.asarray(keep) / (1 - RATE)
  logits = np.einsum('bqhk,bshk->bhqs', query, key) + bias
  weights = np.exp(logits - logits.max(axis=-1, keepdims=True)) * mask
  weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
  d_weights = np.einsum('bqhk,bshk->bhqs', direction, value) * keep
  mean = (weights * d_weights).sum(axis=-1, keepdims=True)
  d_logits = weights * (d_weights - mean)
  out = np.einsum('bhqs,bshk->bqhk', weights * keep, value)
  return dict(zip(NAMES, (
      np.where(direction == 0, 0, out),
      np.einsum('bhqs,bshk->bqhk', d_logits, key),
      np.einsum('bhqs,bqhk->bshk', d_logits, query),
      np.einsum('bhqs,bqhk->bshk', weights * keep, direction),
      d_logits.sum(axis=0, keepdims=True),
  )))


@pytest.mark.parametrize(
    ('length', 'heads', 'head_dim'),
    # Two heads of a block and two blocks; all heads in a block that is not
    # full; one head of a block.
    [(64, 4, 64), (136, 3, 32), (160, 2, 128)],
)
def test_in_float32_no_further_off_than_rounding(length, heads, head_dim):
  inputs = make_inputs(2, length, heads, head_dim)
  found = with_gradients(fused_attention, *inputs)
  for name, expected in in_float64(*inputs).items():
    largest = np.abs(expected).max()
    assert largest > 0.1, name
    np.testing.assert_allclose(
        found[name], expected, rtol=0, atol=1e-5 * largest, err_msg=name
    )


def test_in_bfloat16_no_further_off_than_the_plain_form():
  inputs = make_inputs(3, 160, 4, 64, 'bfloat16')
  expected = in_float64(*inputs)

  def errors(attention_fn):
    found = with_gradients(attention_fn, *inputs)
    return {
        name: np.sqrt(np.mean((np.asarray(found[name], np.float64) - x) ** 2))
        for name, x in expected.items()
    }

  plain = errors(einsum_attention)
  for name, error in errors(fused_attention).items():
    assert 0 < error < 1.05 * plain[name], name


def test_on_a_mesh_rows_and_heads_are_split():
  inputs = make_inputs(8, 32, 4, 64)
  alone = with_gradients(fused_attention, *inputs)
  partitioner = small_mesh.SmallPartitioner(model_parallel=2)

  @functools.partial(
      jax.jit,
      in_shardings=(
          (*[partitioner.rows] * 3, partitioner.replicated),
          *[partitioner.rows] * 3,
      ),
  )
  def on_mesh(*inputs):
    with partitioner.scope():
      assert fits(inputs[0][0], inputs[0][3])
      return with_gradients(fused_attention, *inputs)

  for name, found in on_mesh(*inputs).items():
    np.testing.assert_allclose(
        found, alone[name], rtol=0, atol=1e-5, err_msg=name
    )
  # Heads are not gathered from the model axis.
  assert 'all-gather' not in on_mesh.lower(*inputs).compile().as_text()


@pytest.mark.slow
def test_a_tpu_takes_the_kernel():
  from dualenc_jax.forecast import slices
  from dualenc_jax.training import Partitioner

  partitioner = slices.on_slice(Partitioner(2), slices.find_slice('v5e:2x2'))
  shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
      make_inputs(4, 48, 4, 64, 'bfloat16'),
  )
  rows, replicated = partitioner.rows, partitioner.replicated
  shardings = (*[rows] * 3, replicated), *[rows] * 3

  @functools.partial(jax.jit, in_shardings=shardings)
  def step(*args):
    with partitioner.scope():
      return with_gradients(dot_product_attention, *args)

  # As texts are encoded: each device has its rows already.
  @functools.partial(jax.jit, in_shardings=shardings)
  def encode(inputs, mask, keep, direction):
    rows = PartitionSpec('data')
    with partitioner.scope():
      return jax.shard_map(
          lambda inputs, mask: dot_product_attention(*inputs, mask),
          mesh=partitioner.mesh.abstract_mesh,
          axis_names={'data'},
          in_specs=((*[rows] * 3, PartitionSpec()), rows),
          out_specs=rows,
      )(inputs, mask)

  for program, kernels in (step, 2), (encode, 1):
    text = program.lower(*shapes).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == kernels
    assert 'exponential' not in text
