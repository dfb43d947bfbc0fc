"""Attention and its bias: forms that are equal, and dropout.

test_fused_attention.py compares one of them with float64 NumPy.
"""

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


@pytest.mark.parametrize(
    'pairwise_mask, dtype, rtol',
    [(True, 'float32', 1e-5), (False, 'bfloat16', 0.03)],
)
def test_the_forms_have_equal_values_and_gradients(pairwise_mask, dtype, rtol):
  *inputs, _, mask = random_inputs(dtype, pairwise_mask)
  module = t5_encoder.RelativePositionBias(H)
  variables = nn.unbox(module.init(jax.random.key(0), L))
  direction = jax.random.normal(jax.random.key(1), (B, L, H, K))

  def value_and_gradients(attention_fn):
    def scalar(query, key, value, variables):
      bias = module.apply(variables, L)
      out = attention_fn(query, key, value, bias, mask)
      assert out.dtype == dtype
      return jnp.sum(out.astype(jnp.float32) * direction), out

    (_, out), gradients = jax.jit(
        jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True)
    )(*inputs, variables)
    return dict(zip(('out', 'query', 'key', 'value', 'bias'), (
        out, *gradients[:3], gradients[3]['params']['rel_embedding']
    )))

  plain, *others = map(value_and_gradients, ATTENTION_FNS)
  for name, expected in plain.items():
    expected = np.asarray(expected, np.float64)
    largest = np.abs(expected).max()
    assert largest > 0.01, name
    for other in others:
      found = np.asarray(other[name], np.float64)
      np.testing.assert_allclose(
          found, expected, rtol=0, atol=rtol * largest, err_msg=name
      )


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
def test_row_without_a_key_is_finite(attention_fn):
  *inputs, mask = random_inputs()
  mask = mask.at[1].set(False)
  out, gradients = jax.jit(jax.value_and_grad(
      lambda *args: jnp.sum(attention_fn(*args, mask) ** 2), (0, 1, 2, 3)
  ))(*inputs)
  assert np.isfinite(out)
  assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize('attention_fn', ATTENTION_FNS)
def test_dropout_drops_the_softmax_weights_of_whole_keys(attention_fn):
  query, key, _, bias, mask = random_inputs()
  # With one-hot values the result is the matrix of weights.
  value = jnp.broadcast_to(jnp.eye(L)[None, :, None, :], (B, L, H, L))
  query, key = (jnp.pad(x, [(0, 0)] * 3 + [(0, L - K)]) for x in (query, key))
  plain = attention_fn(query, key, value, bias, mask)
  # A text a row. T5X's dropout: one mask for all queries of a row and head.
  texts = Segments.from_lengths(L, jnp.full((B, 1), L), jnp.arange(B)[:, None])
  weights = texts.keep_each(jax.random.key(3), H, 0.25)
  weights = jnp.swapaxes(weights, 1, 2)[:, :, None]
  dropped = attention_fn(query, key, value, bias, mask, 0.25, weights)
  keep = (np.asarray(dropped) != 0).any(axis=1, keepdims=True)
  seen = np.asarray(mask)[:, :, 0, None, :]
  assert (keep <= seen).all()
  assert 0 < (keep & seen).sum() < (seen & np.ones_like(keep)).sum()
  np.testing.assert_allclose(dropped, plain * keep / 0.75, rtol=0, atol=1e-6)


def test_relative_position_bias_is_the_embedding_of_the_bucket():
  embedding = np.random.default_rng(0).normal(size=(H, 32)).astype(np.float32)
  bias = t5_encoder.RelativePositionBias(H).apply(
      {'params': {'rel_embedding': embedding}}, 4
  )
  assert bias.shape == (1, H, 4, 4)
  # Below 8 tokens a distance is its own bucket; keys to the right have 16 on.
  expected = [[0, 17, 18, 19], [1, 0, 17, 18], [2, 1, 0, 17], [3, 2, 1, 0]]
  np.testing.assert_array_equal(bias[0], embedding[:, np.array(expected)])
