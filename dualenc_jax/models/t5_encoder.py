"""The T5 encoder stack, 1.1 (gated GELU) and 1.0 (ReLU).

Shapes: R rows, S texts a row, L tokens, E model dim, H heads.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax

from dualenc_jax.errors import UserError
from dualenc_jax.models import attention, layers
from dualenc_jax.models.layers import Segments


class EncoderLayer(nn.Module):
  """Pre-norm self-attention and feed-forward, each with a residual."""

  num_heads: int
  head_dim: int
  mlp_dim: int
  activations: Sequence[str]
  dropout_rate: float
  dtype: str
  attention_fn: attention.AttentionFn

  @nn.compact
  def __call__(
      self,
      x: jax.Array,
      bias: jax.Array,
      mask: jax.Array,
      dropout: Segments | None = None,
  ) -> jax.Array:
    """Maps [R, L, E] to [R, L, E]."""
    x = nn.with_logical_constraint(x, ('batch', 'length', 'activation_embed'))
    y = layers.RMSNorm(dtype=self.dtype, name='pre_attention_layer_norm')(x)
    y = attention.SelfAttention(
        self.num_heads,
        self.head_dim,
        self.dropout_rate,
        self.dtype,
        self.attention_fn,
        name='attention',
    )(y, bias, mask, dropout)
    x = x + layers.Dropout(self.dropout_rate)(y, dropout)
    y = layers.RMSNorm(dtype=self.dtype, name='pre_mlp_layer_norm')(x)
    y = layers.Mlp(
        self.mlp_dim,
        self.activations,
        self.dropout_rate,
        self.dtype,
        name='mlp',
    )(y, dropout)
    return x + layers.Dropout(self.dropout_rate)(y, dropout)


class T5Encoder(nn.Module):
  """A stack of T5 encoder layers over embedded tokens.

  Parameters have T5X's names and shapes: `layers_0/attention/query/kernel`
  [E, H*head_dim], `relpos_bias/rel_embedding` [H, 32], `encoder_norm/scale`.
  With `scan_layers` the layers are one subtree `layers`, every array with a
  leading axis of `num_layers`; Adafactor then takes its per-tensor statistics
  over all layers at once.

  Attributes:
    num_layers: depth.
    num_heads: H.
    head_dim: size of one head.
    mlp_dim: hidden size of the feed-forward block.
    activations: ('gelu', 'linear') for T5 1.1, ('relu',) for T5 1.0.
    dropout_rate: dropout as in T5X; attention weights, too.
    dtype: activation dtype, 'float32' or 'bfloat16'; parameters are float32.
    scan_layers: run the stack as one scan: compiles faster, runs slower.
    remat: recompute each layer in the backward pass to save memory.
    attention_fn: `dot_product_attention` or `einsum_attention`.
  """

  num_layers: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  activations: Sequence[str] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  dtype: str = 'float32'
  scan_layers: bool = False
  remat: bool = False
  attention_fn: attention.AttentionFn = attention.dot_product_attention

  def __post_init__(self):
    if self.dtype not in ('float32', 'bfloat16'):
      raise UserError(
          f"T5Encoder.dtype is {self.dtype!r}; expected 'float32' or"
          " 'bfloat16'. T5 overflows in float16."
      )
    # No layer at all is a bag of words, a baseline of its own.
    least = {'num_layers': 0, 'num_heads': 1, 'head_dim': 1, 'mlp_dim': 1}
    for name, minimum in least.items():
      if getattr(self, name) < minimum:
        raise UserError(
            f'T5Encoder.{name} is {getattr(self, name)}; expected at least'
            f' {minimum}.'
        )
    if not 0.0 <= self.dropout_rate < 1.0:
      raise UserError(
          f'T5Encoder.dropout_rate is {self.dropout_rate}; expected a value'
          ' from 0 up to, not including, 1.'
      )
    super().__post_init__()

  @nn.compact
  def __call__(
      self,
      x: jax.Array,
      lengths: jax.Array,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """Encodes embedded tokens.

    Args:
      x: [R, L, E], the output of `TokenEmbedder`.
      lengths: int32 [R, S], tokens of the texts of a row, which lie one after
        the other from its start. No text attends to another.
      dropout_numbers: numbers of the texts, uint32 [R, S]; None switches
        dropout off. The masks of a text depend on the rng `dropout` and its
        number alone, so they are the same in whatever row it lies.

    Returns:
      [R, L, E] in `dtype`. Positions after the last text hold no meaning.
    """
    segments = Segments.of(x.shape[1], lengths, dropout_numbers)
    dropout = None if dropout_numbers is None else segments
    x = layers.Dropout(self.dropout_rate)(x.astype(self.dtype), dropout)
    bias = attention.RelativePositionBias(self.num_heads, name='relpos_bias')(
        x.shape[1]
    )
    mask = segments.attention_mask()

    layer = EncoderLayer
    if self.remat:
      layer = nn.remat(layer, prevent_cse=not self.scan_layers)
    config = (
        self.num_heads,
        self.head_dim,
        self.mlp_dim,
        tuple(self.activations),
        self.dropout_rate,
        self.dtype,
        self.attention_fn,
    )
    if self.scan_layers:
      scan = nn.scan(
          lambda module, carry, *args: (module(carry, *args), None),
          variable_axes={'params': 0},
          split_rngs={'params': True, 'dropout': True},
          in_axes=nn.broadcast,
          length=self.num_layers,
          metadata_params={nn.PARTITION_NAME: 'layers'},
      )
      x, _ = scan(layer(*config, name='layers'), x, bias, mask, dropout)
    else:
      for i in range(self.num_layers):
        x = layer(*config, name=f'layers_{i}')(x, bias, mask, dropout)
    x = layers.RMSNorm(dtype=self.dtype, name='encoder_norm')(x)
    return layers.Dropout(self.dropout_rate, shared=False)(x, dropout)
