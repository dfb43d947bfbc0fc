"""The encoder stack of the Gemma family: T5Gemma and EmbeddingGemma, 1 and 2.

Blocks are normed before and after. Attention is bidirectional, with rotary
positions, and with heads of keys and values that several query heads share; in
most layers a token attends to its neighbours alone. Shapes: R rows, S texts a
row, L tokens, E model dim, H query heads, G heads of keys and values, K
head_dim.
"""

from collections.abc import Sequence
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.models import layers
from dualenc_jax.models.layers import Segments
from dualenc_jax.utils.errors import expect

_WHOLE = (
    'num_layers', 'num_heads', 'num_kv_heads', 'head_dim', 'mlp_dim',
    'global_every',
)


def rms_norm(x: jax.Array) -> jax.Array:
  """The last axis of [..., E] over its root mean square, in float32."""
  x = x.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(mean_square + 1e-6)


class _Norm(nn.Module):
  """RMS norm times offset + scale, in float32; the factor starts at `first`."""

  axis: str = 'embed'
  dtype: str = 'float32'
  offset: float = 1.0
  first: float = 1.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = layers.parameter(
        self, 'scale', nn.initializers.constant(self.first - self.offset),
        (x.shape[-1],), (self.axis,),
    )
    scale = jnp.broadcast_to(self.offset + scale, x.shape)
    return (rms_norm(x) * scale).astype(self.dtype)


def rotary_angles(
    positions: jax.Array, head_dim: int, base: float, factor: float = 1.0
) -> jax.Array:
  """Angles of rotary positions: int32 [R, L] -> float32 [R, L, K / 2].

  Component i turns by position / factor / base^(2 i / K).
  """
  exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
  frequencies = 1.0 / (np.float32(base) ** exponents) / np.float32(factor)
  return positions.astype(jnp.float32)[..., None] * frequencies[None, None]


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
  """Turns the halves of heads [R, L, H, K] by angles [R, L, K / 2]."""
  cos = jnp.cos(angles)[:, :, None].astype(x.dtype)
  sin = jnp.sin(angles)[:, :, None].astype(x.dtype)
  one, other = jnp.split(x, 2, axis=-1)
  return jnp.concatenate(
      [one * cos - other * sin, other * cos + one * sin], axis=-1
  )


def grouped_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array,
    scale: float, logit_cap: float | None = None,
) -> jax.Array:
  """Attention of H query heads to G heads of keys and values, G a divisor of H.

  Query heads n H/G to (n + 1) H/G - 1 attend to head n. With a cap c logits are
  c tanh(logit / c).

  Args:
    query: [R, L, H, K]; key and value are [R, L, G, K].
    mask: bool [R, 1, 1 or L, L], True where a key may be attended to.
    scale: factor of the products.
    logit_cap: c, or None.

  Returns:
    [R, L, H, K], in the dtype of `value`; the softmax is float32.
  """
  if logit_cap is None:
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale
    )
  rows, length, heads, dim = query.shape
  groups = query.reshape(rows, length, key.shape[2], -1, dim)
  logits = scale * jnp.einsum(
      'rqgnk,rsgk->rgnqs', groups, key, preferred_element_type=jnp.float32
  )
  logits = logit_cap * jnp.tanh(logits / logit_cap)
  logits = jnp.where(mask[:, None], logits, -0.7 * np.finfo(np.float32).max)
  weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
  found = jnp.einsum('rgnqs,rsgk->rqgnk', weights, value)
  return found.reshape(rows, length, heads, dim)


class _Attention(nn.Module):
  """Attention of a layer, whose kind is in its mask and its angles."""

  num_heads: int
  num_kv_heads: int
  head_dim: int
  query_scale: float
  query_key_norm: bool
  value_norm: bool
  norm_offset: float
  logit_cap: float | None
  dtype: str

  @nn.compact
  def __call__(
      self, x: jax.Array, mask: jax.Array, angles: jax.Array,
      dropout: Segments | None = None,
  ) -> jax.Array:
    def heads(name: str, count: int, axis: str) -> jax.Array:
      y = layers.Dense(
          count * self.head_dim, ('embed', axis), dtype=self.dtype, name=name
      )(x, dropout)
      if axis == 'joined_kv':
        y = nn.with_logical_constraint(y, ('batch', 'length', 'heads'))
      return y.reshape(*y.shape[:-1], count, self.head_dim)

    # Fewer heads of keys than devices could not be split among these.
    axis = 'joined_kv' if self.num_kv_heads == self.num_heads else 'kv'
    query = heads('query', self.num_heads, 'joined_kv')
    key = heads('key', self.num_kv_heads, axis)
    value = heads('value', self.num_kv_heads, axis)
    if self.query_key_norm:
      norm = functools.partial(_Norm, 'kv', self.dtype, self.norm_offset)
      query, key = norm(name='query_norm')(query), norm(name='key_norm')(key)
    if self.value_norm:
      value = rms_norm(value).astype(self.dtype)
    y = grouped_attention(
        rotate(query, angles), rotate(key, angles), value, mask,
        self.query_scale, self.logit_cap,
    )
    return layers.Dense(
        x.shape[-1], ('joined_kv', 'embed'), dtype=self.dtype, name='out'
    )(y.reshape(*x.shape[:-1], -1), dropout)


class _Layer(nn.Module):
  """Attention and feed-forward, each between two norms, with residuals."""

  attention: tuple
  mlp_dim: int
  activations: Sequence[str]
  norm_offset: float
  layer_scale: bool
  dropout_rate: float
  dtype: str
  residual_init: float

  @nn.compact
  def __call__(
      self, x: jax.Array, is_global: jax.Array | bool, kinds: tuple,
      dropout: Segments | None = None, signal: jax.Array | None = None,
  ) -> jax.Array:
    """Maps [R, L, E]; `kinds` are (mask, angles) of local and global layers.

    `signal` is [R, L, P], that of the layer, or None.
    """
    x = nn.with_logical_constraint(x, ('batch', 'length', 'activation_embed'))
    if isinstance(is_global, bool):
      mask, angles = kinds[is_global]
    else:
      mask, angles = (jnp.where(is_global, b, a) for a, b in zip(*kinds))

    def norm(name: str, y: jax.Array) -> jax.Array:
      first = self.residual_init if name.startswith('post') else 1.0
      return _Norm('embed', self.dtype, self.norm_offset, first, name=name)(y)

    drop = layers.Dropout(self.dropout_rate)
    y = norm('pre_attention_layer_norm', x)
    y = _Attention(*self.attention, name='attention')(
        y, mask, angles, dropout
    )
    x = x + drop(norm('post_attention_layer_norm', y), dropout)
    y = norm('pre_mlp_layer_norm', x)
    y = layers.Mlp(
        self.mlp_dim, self.activations, self.dropout_rate, self.dtype,
        name='mlp',
    )(y, dropout)
    x = x + drop(norm('post_mlp_layer_norm', y), dropout)
    if signal is not None:
      y = layers.Dense(
          signal.shape[-1], ('embed', 'mlp'), dtype=self.dtype,
          name='signal_gate',
      )(x)
      y = layers.Dense(
          x.shape[-1], ('mlp', 'embed'), dtype=self.dtype, name='signal_out'
      )(getattr(nn, self.activations[0])(y) * signal)
      x = x + norm('post_signal_layer_norm', y)
    if self.layer_scale:
      # A buffer in the released model: it is not trained.
      scale = layers.parameter(
          self, 'scale', nn.initializers.ones, (1,), (None,), self.dtype
      )
      x = x * jax.lax.stop_gradient(scale[0])
    return x


class GemmaEncoder(nn.Module):
  """A stack of bidirectional Gemma layers over embedded tokens.

  Layers i with i + 1 a multiple of `global_every` are global, the others local:
  there a token attends to those of its text that are at most `window` before
  and after it. Embedded tokens are multiplied by sqrt(E). Parameters are named
  as those of `T5Encoder`, with 'post_attention_layer_norm/scale',
  'post_mlp_layer_norm/scale' and 'attention/query_norm/scale' besides.

  Attributes:
    num_layers: layers.
    num_heads: H.
    num_kv_heads: G, a divisor of H.
    head_dim: K, even; H K need not be E.
    mlp_dim: F, the hidden size of the feed-forward block.
    window: most tokens before and after a token in local layers.
    global_every: 2 in T5Gemma 1, 6 in Gemma 3; 1 for global layers alone.
    rotary_base: base of rotary positions in local layers.
    global_rotary_base: the same in global layers.
    global_rotary_factor: divisor of positions in global layers.
    query_scale: factor of the products of queries and keys; None for 1/sqrt(K).
    query_key_norm: whether queries and keys are normed, by head.
    logit_cap: c of c tanh(logit / c); None for no cap.
    last_is_global: whether the last layer is global whatever its number.
    global_head_dim: K of global layers; None for that of all.
    global_kv_heads: G of global layers; None for that of all.
    value_norm: whether values are normed, by head, without a scale.
    norm_offset: 1 where norms multiply by 1 + scale, 0 where by the scale.
    signal_dim: P of a signal of each token for each layer, a map of the token's
      embedding: a third block of a layer, down(gelu(gate(x)) * signal), adds
      it. 0 for none.
    layer_scale: whether a constant multiplies the output of each layer.
    residual_init: factor of what every block adds to the stream at the start.
    activations: of the gated feed-forward block; 'gelu' is the tanh form.
    dropout_rate: dropout of embedded tokens, hidden units, blocks and output;
      none of attention weights.
    dtype: activation dtype, 'float32' or 'bfloat16'; parameters are float32.
    scan_layers: run the stack as one scan: compiles faster, runs slower.
    remat: recompute each layer in the backward pass to save memory.
  """

  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  window: Sequence[int] = (256, 256)
  global_every: int = 6
  rotary_base: float = 10_000.0
  global_rotary_base: float = 1_000_000.0
  global_rotary_factor: float = 1.0
  query_scale: float | None = None
  query_key_norm: bool = True
  logit_cap: float | None = None
  last_is_global: bool = False
  global_head_dim: int | None = None
  global_kv_heads: int | None = None
  value_norm: bool = False
  norm_offset: float = 1.0
  signal_dim: int = 0
  layer_scale: bool = False
  residual_init: float = 1.0
  activations: Sequence[str] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  dtype: str = 'float32'
  scan_layers: bool = False
  remat: bool = False

  def __post_init__(self):
    layers.check_stack(self, 'Gemma', dict.fromkeys(_WHOLE, 1))
    for name in 'num_kv_heads', 'global_kv_heads':
      count = getattr(self, name)
      expect(
          count is None
          or type(count) is int and count > 0 and self.num_heads % count == 0,
          f'GemmaEncoder.{name}', count,
          f'a divisor of num_heads, {self.num_heads}',
      )
    for name in 'head_dim', 'global_head_dim':
      dim = getattr(self, name)
      expect(
          dim is None or type(dim) is int and dim > 0 and dim % 2 == 0,
          f'GemmaEncoder.{name}', dim,
          'an even number, as rotary positions turn pairs of components',
      )
    expect(
        not (self.scan_layers and self.is_varied), 'GemmaEncoder.scan_layers',
        self.scan_layers, 'False, as layers differ in shapes or have a signal',
    )
    expect(
        len(self.window) == 2 and all(
            type(n) is int and n >= 0 for n in self.window
        ),
        'GemmaEncoder.window', self.window,
        'two whole numbers, most tokens before and after',
    )
    super().__post_init__()

  @property
  def scale(self) -> float:
    """The factor of the products of queries and keys."""
    if self.query_scale is None:
      return self.head_dim**-0.5
    return self.query_scale

  @property
  def is_varied(self) -> bool:
    """Whether layers differ in shapes, or each has its own signal."""
    return bool(
        self.global_head_dim or self.global_kv_heads or self.signal_dim
    )

  def layer_is_global(self, number: int) -> bool:
    """Whether a layer, counted from 0, is global."""
    last = self.last_is_global and number == self.num_layers - 1
    return (number + 1) % self.global_every == 0 or last

  def layer_heads(self, number: int) -> tuple[int, int]:
    """G and K of a layer, counted from 0."""
    heads, dim = self.num_kv_heads, self.head_dim
    if self.layer_is_global(number):
      heads = self.global_kv_heads or heads
      dim = self.global_head_dim or dim
    return heads, dim

  @nn.compact
  def __call__(
      self, x: jax.Array, lengths: jax.Array,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """Encodes embedded tokens, [R, L, E]; see `T5Encoder`."""
    length, features = x.shape[1:]
    segments = Segments.from_lengths(length, lengths, dropout_numbers)
    dropout = None if dropout_numbers is None else segments
    # transformers rounds the factor to the dtype, too.
    x = x.astype(self.dtype) * jnp.asarray(features**0.5, self.dtype)
    signals: Any = [None] * self.num_layers
    if self.signal_dim:
      signals = self._signals(x)
    x = layers.Dropout(self.dropout_rate)(x, dropout)

    mask = segments.attention_mask()
    local, angles = mask, []
    if length > min(self.window) + 1:
      place = np.arange(length)
      distance = place[None, :] - place[:, None]
      before, after = self.window
      near = (-before <= distance) & (distance <= after)
      local = mask & near[None, None]
      mask = jnp.broadcast_to(mask, local.shape)
    for base, factor, dim in (
        (self.rotary_base, 1.0, self.head_dim),
        (
            self.global_rotary_base, self.global_rotary_factor,
            self.global_head_dim or self.head_dim,
        ),
    ):
      angles.append(rotary_angles(segments.positions, dim, base, factor))
    kinds = (local, angles[0]), (mask, angles[1])

    def config(number: int) -> tuple:
      heads, dim = self.layer_heads(number)
      attention = (
          self.num_heads, heads, dim, self.scale, self.query_key_norm,
          self.value_norm, self.norm_offset, self.logit_cap, self.dtype,
      )
      return (
          attention, self.mlp_dim, tuple(self.activations), self.norm_offset,
          self.layer_scale, self.dropout_rate, self.dtype,
          self.residual_init,
      )

    which = [self.layer_is_global(i) for i in range(self.num_layers)]
    layer = _Layer
    if self.remat:
      # A layer's kind is static unless the layers are scanned.
      static = () if self.scan_layers else (2,)
      layer = nn.remat(
          layer, prevent_cse=not self.scan_layers, static_argnums=static
      )
    if self.scan_layers:
      scan = nn.scan(
          lambda module, carry, *args: (module(carry, *args), None),
          variable_axes={'params': 0},
          split_rngs={'params': True, 'dropout': True},
          in_axes=(0, nn.broadcast, nn.broadcast),
          length=self.num_layers,
          metadata_params={nn.PARTITION_NAME: 'layers'},
      )
      x, _ = scan(
          layer(*config(0), name='layers'), x, jnp.array(which), kinds, dropout
      )
    else:
      for i, is_global in enumerate(which):
        x = layer(*config(i), name=f'layers_{i}')(
            x, is_global, kinds, dropout, signals[i]
        )
    x = _Norm('embed', self.dtype, self.norm_offset, name='encoder_norm')(x)
    return layers.Dropout(self.dropout_rate, shared=False)(x, dropout)

  def _signals(self, x: jax.Array) -> list[jax.Array]:
    """The signal of each layer, [R, L, P], from scaled tokens [R, L, E]."""
    features = self.num_layers * self.signal_dim
    y = layers.Dense(
        features, ('embed', 'mlp'), dtype=self.dtype, name='signal'
    )(x)
    y = (y * x.shape[-1] ** -0.5).reshape(*y.shape[:-1], -1, self.signal_dim)
    y = _Norm('kv', self.dtype, self.norm_offset, name='signal_norm')(y)
    return [y[..., i, :] for i in range(self.num_layers)]
