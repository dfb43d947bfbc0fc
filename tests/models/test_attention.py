"""Attention and its bias: all forms, against float64 NumPy, and dropout."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.models import fused_attention, t5_encoder
from dualenc_jax.models.layers import Segments

B, L, H, K = 3, 12, 4, 8
ATTENTION_FNS = [
    t5_encoder.einsum_attention,
    t5_encoder.dot_product_attention,
    fused_attention.fused_attention,
]


def random_inputs(dtype='float32', pairwise_mask=False):
  """Query, key, value, bias and mask; every query sees at least one key."""
  rng = np.random.default_rng(0)
  query, key, value = (
      jnp.asarray(rng.normal(size=(B, L, H, K)), dtype) for _ in range(3)
  )
  bias = jnp.asarray(rng.normal(size=(1, H, L, L)), jnp.float32)
  mask = rng.random((B, 1, L if pairwise_mask else 1, L)) < 0.6
  mask[..., 0] |= ~mask.any(axis=-1)
  return query, key, value, bias, jnp.asarray(mask)


def numpy_attention(query, key, value, bias, mask):
  query, key, value, bias = (
      np.asarray(x, np.float64) for x in (query, key, value, bias)
  )
  logits = np.einsum('bqhk,bshk->bhqs', query, key) + bias
  weights = np.exp(logits) * np.asarray(mask)
  weights /= weights.sum(axis=-1, keepdims=True)
  return np.einsum('bhqs,bshk->bqhk', weights, value)


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
@pytest.mark.parametrize('pairwise_mask', [False, True])
# bfloat16 inputs are exact in float64; the error left is the rounding of the
# weights and of the result, 8 bits each, on values of about 1 to 3.
@pytest.mark.parametrize('dtype,atol', [('float32', 1e-5), ('bfloat16', 0.03)])
def test_equals_numpy(attention_fn, pairwise_mask, dtype, atol):
  inputs = random_inputs(dtype, pairwise_mask)
  result = attention_fn(*inputs)
  assert result.dtype == dtype
  np.testing.assert_allclose(
      np.asarray(result, np.float64),
      numpy_attention(*inputs),
      rtol=0,
      atol=atol,
  )


@pytest.mark.parametrize('pairwise_mask', [False, True])
@pytest.mark.parametrize('dtype,rtol', [('float32', 1e-5), ('bfloat16', 0.03)])
def test_the_forms_have_equal_values_and_gradients(pairwise_mask, dtype, rtol):
  *inputs, _, mask = random_inputs(dtype, pairwise_mask)
  module = t5_encoder.RelativePositionBias(H)
  variables = nn.unbox(module.init(jax.random.key(0), L))
  direction = jax.random.normal(jax.random.key(1), (B, L, H, K))

  def value_and_gradients(attention_fn):
    def scalar(query, key, value, variables):
      bias = module.apply(variables, L)
      out = attention_fn(query, key, value, bias, mask)
      return jnp.sum(out.astype(jnp.float32) * direction), out

    (_, out), gradients = jax.jit(
        jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)
    )(*inputs, variables)
    query, key, value, variables_gradient = gradients
    return {
        'out': out,
        'query': query,
        'key': key,
        'value': value,
        'rel_embedding': variables_gradient['params']['rel_embedding'],
    }

  plain, *others = map(value_and_gradients, ATTENTION_FNS)
  for name, expected in plain.items():
    expected = np.asarray(expected, np.float64)
    largest = np.abs(expected).max()
    assert largest > 0.01, name
    for other in others:
      np.testing.assert_allclose(
          np.asarray(other[name], np.float64),
          expected,
          rtol=0,
          atol=rtol * largest,
          err_msg=name,
      )


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
def test_gradient_of_bias_equals_a_difference_quotient(attention_fn):
  query, key, value, bias, mask = random_inputs()
  direction = np.random.default_rng(1).normal(size=(B, L, H, K))
  step = np.random.default_rng(2).normal(size=bias.shape)

  gradient = jax.grad(
      lambda bias: jnp.sum(
          attention_fn(query, key, value, bias, mask) * direction
      )
  )(bias)

  def scalar(epsilon):
    moved = np.asarray(bias, np.float64) + epsilon * step
    return np.sum(numpy_attention(query, key, value, moved, mask) * direction)

  quotient = (scalar(1e-5) - scalar(-1e-5)) / 2e-5
  assert np.sum(np.asarray(gradient) * step) == pytest.approx(
      quotient, rel=1e-4
  )


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
def test_row_without_a_key_is_finite(attention_fn):
  *inputs, mask = random_inputs()
  mask = mask.at[1].set(False)
  out, gradients = jax.value_and_grad(
      lambda *args: jnp.sum(attention_fn(*args, mask) ** 2),
      argnums=(0, 1, 2, 3),
  )(*inputs)
  assert np.isfinite(out)
  assert all(np.isfinite(gradient).all() for gradient in gradients)


def texts(rows, length):
  """A text a row, each with a number of its own."""
  numbers = jnp.arange(rows)[:, None]
  return Segments.of(length, jnp.full((rows, 1), length), numbers)


def keep_weights(rows, length, heads, rate):
  """The mask that `SelfAttention` draws: [rows, heads, 1, length]."""
  keep = texts(rows, length).keep_each(jax.random.key(3), heads, rate)
  return jnp.swapaxes(keep, 1, 2)[:, :, None]


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
def test_dropout_of_weights_is_unbiased_and_as_frequent_as_said(attention_fn):
  # Equal weights and values of one: the result is the sum of kept weights,
  # 1 / (length * (1 - rate)) each; its mean is 1 and its variance
  # rate / (1 - rate) / length.
  rows, length, heads, rate = 2000, 5, 2, 0.3
  zeros = jnp.zeros((rows, length, heads, 1))
  out = attention_fn(
      zeros,
      zeros,
      jnp.ones_like(zeros),
      jnp.zeros((1, heads, length, length)),
      jnp.ones((1, 1, 1, length), bool),
      rate,
      keep_weights(rows, length, heads, rate),
  )
  out = np.asarray(out)[..., 0]
  # T5X's dropout: one mask for all queries of a row and head.
  assert (out == out[:, :1]).all()
  sums = out[:, 0].astype(np.float64)
  variance = rate / (1 - rate) / length
  standard_error = np.sqrt(variance / sums.size)
  assert sums.mean() == pytest.approx(1.0, abs=5 * standard_error)
  assert sums.var() == pytest.approx(variance, rel=0.15)
  # Rows and heads draw masks of their own.
  assert abs(np.corrcoef(sums.T)[0, 1]) < 0.1
  assert abs(np.corrcoef(sums[1:, 0], sums[:-1, 0])[0, 1]) < 0.1


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
def test_dropout_drops_the_softmax_weights_of_whole_keys(attention_fn):
  query, key, _, bias, mask = random_inputs()
  # With one-hot values the result is the matrix of weights.
  value = jnp.broadcast_to(jnp.eye(L)[None, :, None, :], (B, L, H, L))
  query, key = (jnp.pad(x, [(0, 0)] * 3 + [(0, L - K)]) for x in (query, key))
  plain = attention_fn(query, key, value, bias, mask)
  weights = keep_weights(B, L, H, 0.25)
  dropped = attention_fn(query, key, value, bias, mask, 0.25, weights)
  keep = (np.asarray(dropped) != 0).any(axis=1, keepdims=True)
  seen = np.asarray(mask)[:, :, 0, None, :]
  assert (keep <= seen).all()
  assert 0 < (keep & seen).sum() < (seen & np.ones_like(keep)).sum()
  np.testing.assert_allclose(dropped, plain * keep / 0.75, rtol=0, atol=1e-6)


def test_self_attention_applies_dropout_to_the_weights_only():
  # SelfAttention holds no other dropout, so a difference is the weights'.
  module = t5_encoder.SelfAttention(H, K, dropout_rate=0.5)
  x = jax.random.normal(jax.random.key(0), (B, L, 16))
  *_, bias, mask = random_inputs()
  variables = nn.unbox(module.init(jax.random.key(1), x, bias, mask))
  plain = module.apply(variables, x, bias, mask)
  key = {'dropout': jax.random.key(2)}
  dropped = module.apply(variables, x, bias, mask, texts(B, L), rngs=key)
  assert np.abs(dropped - plain).max() > 0.01
  np.testing.assert_array_equal(
      plain, module.apply(variables, x, bias, mask, rngs=key)
  )


def test_relative_position_bias_is_the_embedding_of_the_bucket():
  embedding = np.random.default_rng(0).normal(size=(H, 32)).astype(np.float32)
  bias = t5_encoder.RelativePositionBias(H).apply(
      {'params': {'rel_embedding': embedding}}, 4
  )
  assert bias.shape == (1, H, 4, 4)
  # Below 8 tokens a distance is its own bucket; keys to the right have 16 on.
  expected = [[0, 17, 18, 19], [1, 0, 17, 18], [2, 1, 0, 17], [3, 2, 1, 0]]
  np.testing.assert_array_equal(bias[0], embedding[:, np.array(expected)])
