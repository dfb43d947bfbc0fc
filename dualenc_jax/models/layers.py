"""Layers of T5 with T5X's parameter names, shapes and initialisers.

Shapes: B rows, L tokens, E model dim, F features.
"""

from collections.abc import Callable, Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

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
    """Looks up int32 tokens [B, L]; returns float32 [B, L, E]."""
    embedding = self.param(
        'embedding',
        nn.with_logical_partitioning(
            nn.initializers.normal(1.0), ('vocab', 'embed')
        ),
        (self.vocab_size, self.features),
        jnp.float32,
    )
    return jnp.take(embedding, tokens, axis=0)


def row_keys(key: jax.Array, rows: jax.Array) -> jax.Array:
  """A random key for each row: key [], row numbers [B] -> keys [B]."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def dropout(
    x: jax.Array, keys: jax.Array, rate: float, shared_axis: int | None = None
) -> jax.Array:
  """Drops entries of x at `rate` and scales up the others.

  Args:
    x: [B, ...].
    keys: [B], those of the rows: a row's mask depends on its key alone, not on
      the rest of the batch.
    rate: share of entries to drop.
    shared_axis: an axis along which all entries share one mask.

  Returns:
    [B, ...].
  """
  shape = list(x.shape)
  if shared_axis is not None:
    shape[shared_axis] = 1
  keep = jax.vmap(
      lambda key: jax.random.bernoulli(key, 1.0 - rate, shape[1:])
  )(keys)
  return jnp.where(keep, x / (1.0 - rate), 0.0)


class Dropout(nn.Module):
  """Dropout whose mask of a row depends on its number, not on its batch mates.

  Attributes:
    rate: share of entries to drop.
    shared_axis: an axis along which all entries share one mask; the tokens of
      a row by default, as in T5X.
  """

  rate: float
  shared_axis: int | None = -2

  @nn.compact
  def __call__(self, x: jax.Array, rows: jax.Array | None) -> jax.Array:
    """Drops entries of [B, ...]; rows: their numbers [B], None for none."""
    if rows is None or self.rate == 0.0:
      return x
    keys = row_keys(self.make_rng('dropout'), rows)
    return dropout(x, keys, self.rate, self.shared_axis)


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
      self, x: jax.Array, dropout_rows: jax.Array | None = None
  ) -> jax.Array:
    """Maps [B, L, E] to [B, L, E]; for `dropout_rows` see `T5Encoder`."""
    hidden = None
    for i, activation in enumerate(self.activations):
      name = 'wi' if len(self.activations) == 1 else f'wi_{i}'
      y = Dense(self.hidden_dim, ('embed', 'mlp'), dtype=self.dtype, name=name)(
          x
      )
      if activation != 'linear':
        y = getattr(nn, activation)(y)
      hidden = y if hidden is None else hidden * y
    hidden = Dropout(self.dropout_rate)(hidden, dropout_rows)
    hidden = nn.with_logical_constraint(hidden, ('batch', 'length', 'mlp'))
    return Dense(x.shape[-1], ('mlp', 'embed'), dtype=self.dtype, name='wo')(
        hidden
    )
