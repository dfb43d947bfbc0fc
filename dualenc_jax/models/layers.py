"""Layers of T5 with T5X's parameter names, shapes and initialisers.

Shapes: R rows, L tokens, E model dim, F features.
"""

from collections.abc import Callable, Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

from dualenc_jax.models.segments import Segments

Initializer = Callable[..., jax.Array]


class Dense(nn.Module):
  """Linear map of the last axis, without bias; the kernel is always 2-D.

  Attributes:
    features: size of the last output axis.
    kernel_axes: logical axis names of the kernel, [input, output].
    kernel_init: initialiser of the float32 kernel.
    dtype: dtype of the product.
  """

  features: int
  kernel_axes: tuple[str, str]
  kernel_init: Initializer = nn.initializers.variance_scaling(
      1.0, 'fan_in', 'truncated_normal'
  )
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [..., E] to [..., F]."""
    kernel = self.param(
        'kernel',
        nn.with_logical_partitioning(self.kernel_init, self.kernel_axes),
        (x.shape[-1], self.features),
        jnp.float32,
    )
    # XLA on the CPU computes the kernel's gradient 2.7 times faster over one
    # flat axis of tokens than over (B, L); elsewhere it makes no difference.
    flat = x.reshape(-1, x.shape[-1]).astype(self.dtype)
    y = jnp.dot(flat, kernel.astype(self.dtype))
    return y.reshape(*x.shape[:-1], self.features)


class RMSNorm(nn.Module):
  """T5's layer norm: no mean, no bias, statistics in float32."""

  epsilon: float = 1e-6
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises the last axis of [..., E]."""
    scale = self.param(
        'scale',
        nn.with_logical_partitioning(nn.initializers.ones, ('embed',)),
        (x.shape[-1],),
        jnp.float32,
    )
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    normalised = x * jax.lax.rsqrt(mean_square + self.epsilon)
    scale = jnp.broadcast_to(scale.astype(self.dtype), x.shape)
    return normalised.astype(self.dtype) * scale


class TokenEmbedder(nn.Module):
  """The token embedding table, [vocab_size, features].

  Attributes:
    vocab_size: rows of the table; T5 pads 32,100 pieces to 32,128 rows.
    features: E, the model dim.
  """

  vocab_size: int = 32128
  features: int = 512

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Looks up int32 tokens [R, L]; returns float32 [R, L, E]."""
    embedding = self.param(
        'embedding',
        nn.with_logical_partitioning(
            nn.initializers.normal(1.0), ('vocab', 'embed')
        ),
        (self.vocab_size, self.features),
        jnp.float32,
    )
    return jnp.take(embedding, tokens, axis=0)


class Dropout(nn.Module):
  """Dropout whose mask of a text depends on its number, not on its row.

  Attributes:
    rate: share of entries to drop.
    shared: all tokens of a text share one mask, as in T5X.
  """

  rate: float
  shared: bool = True

  @nn.compact
  def __call__(self, x: jax.Array, texts: Segments | None) -> jax.Array:
    """Drops entries of [R, L, F]; texts: those of its rows, None for none."""
    if texts is None or self.rate == 0.0:
      return x
    draw = texts.keep_shared if self.shared else texts.keep_each
    keep = draw(self.make_rng('dropout'), x.shape[-1], self.rate)
    return jnp.where(keep, x / (1.0 - self.rate), 0.0)


class Mlp(nn.Module):
  """T5's feed-forward block.

  Two activations make the gated form of T5 1.1, `wi_0` and `wi_1`
  multiplied; one makes the plain form of T5 1.0, `wi`.

  Attributes:
    hidden_dim: size of the hidden axis.
    activations: names from `flax.linen` ('gelu', 'relu', 'silu'), or 'linear'.
    dropout_rate: dropout of the hidden units.
    dtype: activation dtype.
  """

  hidden_dim: int
  activations: Sequence[str] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  dtype: str = 'float32'

  @nn.compact
  def __call__(
      self, x: jax.Array, dropout: Segments | None = None
  ) -> jax.Array:
    """Maps [R, L, E] to [R, L, E]; drops hidden units if given `dropout`."""
    hidden = None
    for i, activation in enumerate(self.activations):
      name = 'wi' if len(self.activations) == 1 else f'wi_{i}'
      y = Dense(self.hidden_dim, ('embed', 'mlp'), dtype=self.dtype, name=name)(
          x
      )
      if activation != 'linear':
        y = getattr(nn, activation)(y)
      hidden = y if hidden is None else hidden * y
    hidden = Dropout(self.dropout_rate)(hidden, dropout)
    hidden = nn.with_logical_constraint(hidden, ('batch', 'length', 'mlp'))
    return Dense(x.shape[-1], ('mlp', 'embed'), dtype=self.dtype, name='wo')(
        hidden
    )
