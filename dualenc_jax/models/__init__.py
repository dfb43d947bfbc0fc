"""Flax Linen modules: the T5 encoder and the dual encoder built from it."""

from dualenc_jax.models.dual_encoder import (
  abstract_params,
  describe,
  DualEncoder,
  model_params,
  Projection,
)
from dualenc_jax.models.layers import TokenEmbedder
from dualenc_jax.models.t5_encoder import (
  dot_product_attention,
  einsum_attention,
  T5Encoder,
)

__all__ = [
    'DualEncoder',
    'Projection',
    'T5Encoder',
    'TokenEmbedder',
    'abstract_params',
    'describe',
    'dot_product_attention',
    'einsum_attention',
    'model_params',
]
