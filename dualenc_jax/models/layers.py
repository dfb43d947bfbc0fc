"""Layers of T5 over rows of several texts, and dropout by text.

Parameters have T5X's names, shapes and initialisers. Shapes: R rows, S texts a
row, L tokens, E model dim, F features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import contextvars
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.parallel import data_axis
from dualenc_jax.parallel.accelerators import current_backend
from dualenc_jax.utils.errors import expect

Initializer = Callable[..., jax.Array]


# Names beside a `Dense` kernel [E, F] of its adapter: A [E, r] and B [r, F],
# which no module declares (LoRA, Hu et al., 2021).
ADAPTER = ('lora_a', 'lora_b')
_adapter_dropout = contextvars.ContextVar('_adapter_dropout', default=0.0)

KERNEL_INIT = nn.initializers.variance_scaling(
    1.0, 'fan_in', 'truncated_normal'
)


def scaled(init: Initializer, factor: float) -> Initializer:
  """An initialiser whose values are multiplied by `factor`."""
  return init if factor == 1.0 else lambda *args: factor * init(*args)


def check_stack(stack: Any, family: str, least: Mapping[str, int]) -> None:
  """Raises UserError for a stack of layers with a bad dtype, size or dropout.

  `least` has the least of each whole number, by the name of its attribute.
  """
  kind = type(stack).__name__
  expect(
      stack.dtype in ('float32', 'bfloat16'), f'{kind}.dtype', stack.dtype,
      f"'float32' or 'bfloat16', as {family} overflows in float16",
  )
  for name, minimum in least.items():
    value = getattr(stack, name)
    expect(
        type(value) is int and value >= minimum, f'{kind}.{name}', value,
        f'a whole number, at least {minimum}',
    )
  expect(
      0.0 <= stack.dropout_rate < 1.0, f'{kind}.dropout_rate',
      stack.dropout_rate, 'a value from 0 up to, not including, 1',
  )


def parameter(
    module: nn.Module, name: str, init: Initializer, shape: Sequence[int],
    axes: Sequence[str | None], dtype: str = 'float32',
) -> jax.Array:
  """Declares a float32 parameter; returns it whole, in the dtype of its use.

  `shape` is that of the whole parameter; `axes` are logical.
  """
  part: Any = module.param(
      name, nn.with_logical_partitioning(init, tuple(axes)),
      data_axis.local_shape(shape, axes), jnp.float32,
  )
  return data_axis.gather_param(part, axes, dtype)


@contextlib.contextmanager
def use_adapter_dropout(rate: float) -> Iterator[None]:
  """A context in which adapters drop entries of their inputs at a rate."""
  token = _adapter_dropout.set(rate)
  try:
    yield
  finally:
    _adapter_dropout.reset(token)


def box_adapter(
    kernel: nn.LogicallyPartitioned, rank: int
) -> dict[str, nn.LogicallyPartitioned]:
  """The abstract adapter of a kernel, by name, in boxes of its logical axes.

  The kernel is [E, F], or [layers, E, F] of a scan.
  """
  *stack, inputs, outputs = kernel.value.shape
  *stacked, rows, columns = kernel.names
  parts = (
      ((*stack, inputs, rank), (*stacked, rows, None)),
      ((*stack, rank, outputs), (*stacked, None, columns)),
  )
  return {
      name: nn.LogicallyPartitioned(
          jax.ShapeDtypeStruct(shape, jnp.float32), names
      )
      for name, (shape, names) in zip(ADAPTER, parts)
  }


class Dense(nn.Module):
  """Linear map of the last axis, without bias; the kernel is always 2-D.

  `kernel_axes` are logical, [input, output]; the product has `dtype`. Where the
  parameters have an adapter A, B beside the kernel, x A B is added, so that the
  kernel needs no gradient to train it.
  """

  features: int
  kernel_axes: tuple[str, str]
  kernel_init: Initializer = KERNEL_INIT
  dtype: str = 'float32'

  @nn.compact
  def __call__(
      self, x: jax.Array, dropout: 'Segments | None' = None
  ) -> jax.Array:
    """Maps [..., E] to [..., F]; `dropout` has the texts of x for adapters."""
    kernel = parameter(
        self, 'kernel', self.kernel_init, (x.shape[-1], self.features),
        self.kernel_axes, self.dtype,
    )
    x = x.astype(self.dtype)
    y = _product(x, kernel)
    if not self.has_variable('params', ADAPTER[0]):
      return y
    rows, columns = self.kernel_axes
    a, b = (
        data_axis.gather_param(
            self.get_variable('params', name), axes, self.dtype
        )
        for name, axes in zip(ADAPTER, ((rows, None), (None, columns)))
    )
    x = Dropout(_adapter_dropout.get())(x, dropout)
    return y + _product(_product(x, a), b)


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """The product of [..., E] and [E, F]."""
  if current_backend() != 'cpu':
    return jnp.dot(x, kernel)
  # XLA for CPUs computes the kernel's gradient 2.7 times faster over one flat
  # axis of tokens than over (B, L); a TPU's compiler would not fuse the product
  # with its neighbours.
  y = jnp.dot(x.reshape(-1, x.shape[-1]), kernel)
  return y.reshape(*x.shape[:-1], kernel.shape[-1])


class RMSNorm(nn.Module):
  """T5's layer norm: no mean, no bias, statistics in float32."""

  epsilon: float = 1e-6
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises the last axis of [..., E]."""
    scale = parameter(
        self, 'scale', nn.initializers.ones, (x.shape[-1],), ('embed',),
        self.dtype,
    )
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    normalised = x * jax.lax.rsqrt(mean_square + self.epsilon)
    scale = jnp.broadcast_to(scale, x.shape)
    return normalised.astype(self.dtype) * scale


class TokenEmbedder(nn.Module):
  """The table [vocab_size, E]; T5 pads 32,100 pieces to 32,128 rows.

  `init_std` is the standard deviation of its first numbers, 1 in T5. Gemma
  multiplies tokens by sqrt(E), for which 1/sqrt(E) makes up.
  """

  vocab_size: int = 32128
  features: int = 512
  init_std: float = 1.0

  def setup(self):
    self.embedding = parameter(
        self, 'embedding', nn.initializers.normal(self.init_std),
        (self.vocab_size, self.features), ('vocab', 'embed'),
    )

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Looks up int32 tokens [R, L]; returns float32 [R, L, E]."""
    return jnp.take(self.embedding, tokens, axis=0)


class Segments(NamedTuple):
  """The texts of rows, one after the other from the start of a row.

  Attributes:
    slots: int32 [R, L], the text of each token, 0 to S - 1; S after the last.
    positions: int32 [R, L], the place of each token within its text.
    lengths: int32 [R, S], tokens of each text.
    numbers: uint32 [R, S], numbers of the texts for dropout; None without it.
  """

  slots: jax.Array
  positions: jax.Array
  lengths: jax.Array
  numbers: Any

  @classmethod
  def from_lengths(
      cls, length: int, lengths: jax.Array, numbers: jax.Array | None = None
  ) -> 'Segments':
    """Makes segments of rows of `length` tokens from `lengths` [R, S]."""
    ends = jnp.cumsum(lengths, axis=1, dtype=jnp.int32)
    place = jnp.arange(length, dtype=jnp.int32)
    beyond = place[None, :, None] >= ends[:, None, :]
    slots = jnp.sum(beyond, axis=-1, dtype=jnp.int32)
    # The tokens of a row before its text are those of texts that have ended.
    before = jnp.sum(beyond * lengths[:, None, :], axis=-1, dtype=jnp.int32)
    return cls(slots, place[None] - before, lengths, numbers)

  def attention_mask(self) -> jax.Array:
    """True where a token may attend: bool [R, 1, 1 or L, L]."""
    size = self.lengths.shape[1]
    real = (self.slots < size)[:, None, None, :]
    if size == 1:
      return real
    same = self.slots[:, :, None] == self.slots[:, None, :]
    return real & same[:, None]

  def members(self) -> jax.Array:
    """1.0 where a token belongs to a text: float32 [R, L, S]."""
    size = self.lengths.shape[1]
    return jax.nn.one_hot(self.slots, size, dtype=jnp.float32)

  def keep_shared(self, key: jax.Array, features: int, rate: float):
    """The features to keep, the same in a whole text: bool [R, L or 1, F]."""
    keep = _keep(_draw(self._keys(key), (features,)), rate)
    if keep.shape[1] == 1:
      return keep
    return jnp.take_along_axis(keep, self._own_slots()[:, :, None], axis=1)

  def keep_each(self, key: jax.Array, features: int, rate: float):
    """The features to keep, drawn for each token: bool [R, L, F]."""
    keys = self._keys(key)
    shape = self.slots.shape[1], features
    if keys.shape[1] == 1:
      # Random number n of a key does not depend on how many are drawn, so
      # token p of a text has the numbers p F to p F + F - 1 in a row of any
      # length.
      return _keep(_draw(keys, shape)[:, 0], rate)
    data = jnp.take_along_axis(
        jax.random.key_data(keys), self._own_slots()[:, :, None], axis=1
    )
    keys = jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
    first = self.positions.astype(jnp.uint32) * np.uint32(features)

    def bits_of_token(key, first):
      count = first + jnp.arange(features, dtype=jnp.uint32)
      return jax.vmap(_bits, (None, 0))(key, count)

    return _keep(jax.vmap(jax.vmap(bits_of_token))(keys, first), rate)

  def _keys(self, key: jax.Array) -> jax.Array:
    """A key for each text: [R, S]."""
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))(
        key, self.numbers
    )

  def _own_slots(self) -> jax.Array:
    """`slots`, those of padding moved to the last text."""
    return jnp.minimum(self.slots, self.lengths.shape[1] - 1)


def _draw(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Random bits of each key: [R, S] -> uint32 [R, S, *shape]."""
  return jax.vmap(jax.vmap(lambda key: jax.random.bits(key, shape)))(keys)


def _bits(key: jax.Array, count: jax.Array) -> jax.Array:
  """The number at index `count` of `jax.random.bits(key, ...)`, uint32 []."""
  high, low = jax.random.key_data(jax.random.fold_in(key, count))
  return high ^ low


def _keep(bits: jax.Array, rate: float) -> jax.Array:
  """True with the probability 1 - rate."""
  return bits >= np.uint32(round(rate * 2**32))


class Dropout(nn.Module):
  """Dropout with masks that depend on the number of a text, not on its row.

  With `shared` all tokens of a text have one mask, as in T5X.
  """

  rate: float
  shared: bool = True

  @nn.compact
  def __call__(self, x: jax.Array, texts: Segments | None) -> jax.Array:
    """Drops entries of [R, L, F]; with `texts` None it drops none."""
    if texts is None or self.rate == 0.0:
      return x
    draw = texts.keep_shared if self.shared else texts.keep_each
    keep = draw(self.make_rng('dropout'), x.shape[-1], self.rate)
    return jnp.where(keep, x / (1.0 - self.rate), 0.0)


class Mlp(nn.Module):
  """T5's feed-forward block.

  Two activations make the gated form of T5 1.1, `wi_0` and `wi_1` multiplied;
  one makes the plain form of T5 1.0, `wi`. Activations are functions of
  `flax.linen` ('gelu', 'relu', 'silu') or 'linear'. Dropout acts on the hidden
  units. `out_init` is a factor of the initial `wo`.
  """

  hidden_dim: int
  activations: Sequence[str] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  dtype: str = 'float32'
  out_init: float = 1.0

  @nn.compact
  def __call__(
      self, x: jax.Array, dropout: Segments | None = None
  ) -> jax.Array:
    """Maps [R, L, E] to [R, L, E]; drops hidden units if given `dropout`."""
    hidden: Any = None
    for i, activation in enumerate(self.activations):
      name = 'wi' if len(self.activations) == 1 else f'wi_{i}'
      y = Dense(self.hidden_dim, ('embed', 'mlp'), dtype=self.dtype, name=name)(
          x, dropout
      )
      if activation != 'linear':
        y = getattr(nn, activation)(y)
      hidden = y if hidden is None else hidden * y
    hidden = Dropout(self.dropout_rate)(hidden, dropout)
    hidden = nn.with_logical_constraint(hidden, ('batch', 'length', 'mlp'))
    return Dense(
        x.shape[-1],
        ('mlp', 'embed'),
        kernel_init=scaled(KERNEL_INIT, self.out_init),
        dtype=self.dtype,
        name='wo',
    )(hidden, dropout)
