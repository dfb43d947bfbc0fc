"""Flax Linen modules: the T5 encoder and the dual encoder built from it."""

from dualenc_jax.models.attention import dot_product_attention, einsum_attention
from dualenc_jax.models.dual_encoder import (
  abstract_params,
  DualEncoder,
  model_params,
  Projection,
)
from dualenc_jax.models.layers import TokenEmbedder
from dualenc_jax.models.t5_encoder import T5Encoder

__all__ = [
    'DualEncoder',
    'Projection',
    'T5Encoder',
    'TokenEmbedder',
    'abstract_params',
    'dot_product_attention',
    'einsum_attention',
    'model_params',
]
