"""What towers have and cost, against the compiler's own count."""

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.models import (
  DualEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.models.dual_encoder import abstract_params, count_flops


def make(query_layers, activations=('gelu', 'linear')):
  encoder = T5Encoder(
      num_layers=6, num_heads=4, head_dim=32, mlp_dim=512,
      activations=activations,
  )
  light = {} if query_layers is None else {
      'passage_token_embedder': TokenEmbedder(512, 128),
      'passage_encoder': encoder,
  }
  own = encoder.clone(num_layers=query_layers or 6)
  projection = Projection(64, (1024,))
  return DualEncoder(TokenEmbedder(512, 128), own, projection, **light)


@pytest.mark.parametrize(
    'side, activations', [('query', ('gelu', 'linear')), ('passage', ('relu',))]
)
def test_operations_are_those_that_are_compiled(side, activations):
  model = make(2, activations)
  tokens = jnp.ones((1, 64), jnp.int32)
  variables = {'params': abstract_params(model)}
  compiled = jax.jit(
      lambda v: model.apply(v, tokens, method=f'encode_{side}')
  ).lower(variables).compile()
  counted = compiled.cost_analysis()['flops']
  # Norms, softmax and the rest are some of the compiler's.
  own = count_flops(model, side, 64)
  assert own < counted < 1.1 * own
