"""Similarities are float32 at highest precision, whatever comes in."""

import jax
import jax.numpy as jnp
from loss_cases import LOSSES
from loss_cases import make_batch
from loss_cases import values_and_gradients
import numpy as np
import pytest
import reference


@pytest.mark.parametrize('name', LOSSES)
def test_bfloat16_embeddings_are_scored_in_float32(name):
  make, terms = LOSSES[name]
  embeddings, batch = make_batch(16, 1, dim=64, dtype=jnp.bfloat16)
  want = reference.evaluate(
      batch, terms(batch, True), reference.Options()
  ).value
  value, _ = make()({}, embeddings)
  assert value.dtype == jnp.float32
  assert abs(value - want) <= 1e-6 * want


def test_a_bfloat16_product_would_miss_by_far_more():
  _, batch = make_batch(16, 1, dim=64, dtype=jnp.bfloat16)
  query, passage = batch.vectors['query'], batch.vectors['passage']
  exact = query @ passage.T
  rounded = exact.astype(jnp.bfloat16).astype(np.float64)

  def loss(cosines):
    scores = cosines / 0.01
    return np.mean(np.log(np.exp(scores).sum(1)) - np.diag(scores))

  assert abs(loss(rounded) / loss(exact) - 1) > 1e-4


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float32])
def test_every_product_asks_for_the_highest_precision(dtype):
  # On a GPU or TPU the default would be tf32 or bf16; this holds there, too.
  embeddings, _ = make_batch(4, 1, dtype=dtype)
  losses = {name: make() for name, (make, _) in LOSSES.items()}
  program = jax.make_jaxpr(values_and_gradients(losses))({}, embeddings)
  products = list(_products(program.jaxpr))
  assert len(products) > len(LOSSES)
  for product in products:
    assert {v.aval.dtype for v in product.invars} == {np.dtype('float32')}
    precision = product.params['precision']
    assert precision == (jax.lax.Precision.HIGHEST,) * 2, product


def _products(jaxpr):
  """Every dot_general of a jaxpr and of those within it."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      yield equation
    for inner in jax.core.jaxprs_in_params(equation.params):
      yield from _products(inner)
