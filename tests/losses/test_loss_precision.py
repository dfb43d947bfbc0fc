"""Similarities are float32 at highest precision, whatever comes in."""

import jax
import jax.numpy as jnp
import jaxprs
from loss_cases import LOSSES, make, make_batch, values_and_gradients
import numpy as np
import pytest
import reference

from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

# Enough to have every block.
NAMES = ('samtone_both_towers', 'pair_union_two_way')


def make_losses(implementation):
  return {
      name: make(name, implementation=implementation, tile=6) for name in NAMES
  }


@pytest.mark.parametrize('implementation', ['dense', 'ring'])
def test_bfloat16_embeddings_are_scored_in_float32(implementation):
  embeddings, batch = make_batch(16, 1, dim=64, dtype=jnp.bfloat16)
  losses = make_losses(implementation)
  got = jax.jit(values_and_gradients(losses))({}, embeddings)
  for name, ((value, _), (_, gradients)) in got.items():
    want = reference.evaluate(
        batch, LOSSES[name][1](batch, True), reference.Options()
    )
    assert value.dtype == jnp.float32
    assert abs(value - want.value) <= 1e-6 * want.value
    # Each entry of the gradient is rounded once, by 2^-9 at most.
    for tower, gradient in gradients.items():
      assert gradient.dtype == jnp.bfloat16
      wanted = want.gradients[tower].reshape(gradient.shape)
      np.testing.assert_allclose(
          np.asarray(gradient, np.float64), wanted, rtol=2**-8,
          atol=1e-5 * np.max(np.abs(wanted)),
      )


@pytest.mark.parametrize('implementation', ['dense', 'ring'])
def test_every_product_asks_for_the_highest_precision(implementation):
  # On a GPU or TPU the default would be tf32 or bf16; this holds there, too.
  embeddings, _ = make_batch(16, 1, dtype=jnp.bfloat16)
  losses = make_losses(implementation)
  with Partitioner().scope():
    program = jax.make_jaxpr(values_and_gradients(losses))({}, embeddings)
  products = [
      (equation, within)
      for equation, within in jaxprs.equations(program.jaxpr)
      if equation.primitive.name == 'dot_general'
  ]
  assert len(products) > len(losses)
  for product, _ in products:
    assert {v.aval.dtype for v in product.invars} == {np.dtype('float32')}
    precision = product.params['precision']
    assert precision == (jax.lax.Precision.HIGHEST,) * 2, product
  if implementation == 'ring':
    # A tile is one product forward, and backward the same and two more.
    tiled = [within for _, within in products if 'scan' in within]
    assert len(tiled) >= (1 + 3) * len(losses)
    assert all('shard_map' in within for within in tiled)
