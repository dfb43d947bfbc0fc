"""The T5 encoder stack, 1.1 (gated GELU) and 1.0 (ReLU), and its attention.

Attention has a relative position bias, no scaling and no dense biases. Shapes:
R (or B) rows, S texts a row, L tokens, E model dim, H heads, K head_dim.
"""

from collections.abc import Callable, Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.models import layers
from dualenc_jax.models.layers import Segments
from dualenc_jax.parallel.accelerators import current_backend
from dualenc_jax.utils.errors import expect


def einsum_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array,
    mask: jax.Array, dropout_rate: float = 0.0, keep: jax.Array | None = None,
) -> jax.Array:
  """Attention written out: softmax(query key^T + bias) value.

  Args:
    query, key, value: [B, L, H, K]; T5 folds 1/sqrt(K) into the initialiser.
    bias: [1 or B, H, L, L], float32.
    mask: [B, 1, 1, L] or [B, 1, L, L], True where a key may be attended to.
    dropout_rate: dropout of the attention weights.
    keep: [B, H, 1, L], False at weights to drop; None switches dropout off.

  Returns:
    [B, L, H, K], in the dtype of `value`; the softmax is float32.
  """
  logits = jnp.einsum(
      'bqhk,bshk->bhqs', query, key, preferred_element_type=jnp.float32
  )
  bias = _for_each_row(bias, query.shape[0])
  logits = jnp.where(mask, logits + bias, -0.7 * np.finfo(np.float32).max)
  weights = jax.nn.softmax(logits, axis=-1)
  if keep is not None:
    weights = jnp.where(keep, weights / (1.0 - dropout_rate), 0.0)
  return jnp.einsum('bhqs,bshk->bqhk', weights.astype(value.dtype), value)


def dot_product_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array,
    mask: jax.Array, dropout_rate: float = 0.0, keep: jax.Array | None = None,
) -> jax.Array:
  """Attention in its fastest form, `fused_attention.py` on TPUs, if it fits.

  Elsewhere `jax.nn.dot_product_attention` runs with T5's scale of one, or the
  einsum form where attention weights are dropped, which that function cannot.
  Arguments and result are those of `einsum_attention`.
  """
  if current_backend() == 'tpu':
    # It imports Pallas, which no other machine needs.
    from dualenc_jax.models import fused_attention

    if fused_attention.is_faster(query, bias):
      return fused_attention.fused_attention(
          query, key, value, bias, mask, dropout_rate, keep
      )
  if keep is not None:
    return einsum_attention(query, key, value, bias, mask, dropout_rate, keep)
  bias = _for_each_row(bias, query.shape[0])
  return jax.nn.dot_product_attention(
      query, key, value, bias=bias, mask=mask, scale=1.0
  )


def _for_each_row(bias: jax.Array, rows: int) -> jax.Array:
  """Repeats [1, H, L, L] to [rows, H, L, L], as a product with ones.

  Its gradient is a product, too: XLA on several cores of a CPU takes 100 times
  as long for a sum over rows, the gradient of a broadcast.
  """
  if bias.shape[0] == rows:
    return bias
  ones = jnp.ones(rows, bias.dtype)
  return jnp.einsum('b,hqs->bhqs', ones, bias[0], precision='highest')


AttentionFn = Callable[..., jax.Array]
ATTENTION_INIT = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')


def query_init(head_dim: int) -> layers.Initializer:
  """The initialiser of the query's kernel, with T5's 1/sqrt(K) folded in."""
  divisor = np.sqrt(head_dim).astype(np.float32)
  return lambda *args: ATTENTION_INIT(*args) / divisor


def keep_weights(
    module: nn.Module, dropout: Segments | None
) -> jax.Array | None:
  """The attention weights to keep: bool [R, H, 1, L]; None keeps all."""
  rate = module.dropout_rate
  if dropout is None or rate == 0.0:
    return None
  # T5X draws one mask for all queries of a head.
  keep = dropout.keep_each(module.make_rng('dropout'), module.num_heads, rate)
  return jnp.swapaxes(keep, 1, 2)[:, :, None]


def check_buckets(count: int, what: str) -> None:
  """Raises UserError unless positions can be put into so many buckets.

  A quarter of them, at least one, holds one distance each in a direction; the
  others must have distances left, up to 128.
  """
  expect(
      type(count) is int and 4 <= count < 512, what, count,
      "4 to 511 buckets of relative positions; T5's encoders have 32",
  )


def relative_position_buckets(
    length: int, num_buckets: int, max_distance: int, bidirectional: bool = True
) -> np.ndarray:
  """T5's buckets of key position - query position, int32 [L, L].

  Each direction has half of the buckets; or keys before the query have all, and
  keys after it, which no query sees, count as distance 0. Half of a direction's
  buckets hold one distance each; the others grow logarithmically up to
  `max_distance`.
  """
  position = np.arange(length, dtype=np.int32)
  distance = position[None, :] - position[:, None]
  if not bidirectional:
    distance = np.minimum(distance, 0)
  buckets = num_buckets // 2 if bidirectional else num_buckets
  exact = buckets // 2
  magnitude = np.abs(distance)
  # In float32 with T5X's epsilon, so that no distance changes its bucket.
  logarithm = np.log(
      magnitude.astype(np.float32) / exact + np.finfo(np.float32).eps
  )
  coarse = exact + (
      logarithm / np.log(max_distance / exact) * (buckets - exact)
  ).astype(np.int32)
  bucket = np.where(
      magnitude < exact, magnitude, np.minimum(coarse, buckets - 1)
  )
  return (bucket + buckets * (distance > 0)).astype(np.int32)


class RelativePositionBias(nn.Module):
  """A learnt bias by bucket of relative position, of all layers or of one."""

  num_heads: int
  num_buckets: int = 32
  max_distance: int = 128
  bidirectional: bool = True

  @nn.compact
  def __call__(self, length: int) -> jax.Array:
    """Returns the bias of `length` tokens, float32 [1, H, L, L]."""
    embedding = self.param(
        'rel_embedding',
        nn.with_logical_partitioning(
            nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform'),
            ('heads', 'relpos_buckets'),
        ),
        (self.num_heads, self.num_buckets),
        jnp.float32,
    )
    buckets = relative_position_buckets(
        length, self.num_buckets, self.max_distance, self.bidirectional
    )
    # A product with a constant one-hot instead of a gather: its gradient is a
    # product too, not a scatter of L x L updates onto 32 buckets.
    one_hot = np.eye(self.num_buckets, dtype=np.float32)[buckets]
    bias = jnp.einsum('hn,qsn->hqs', embedding, one_hot, precision='highest')
    return bias[None]


class Attention(nn.Module):
  """T5 multi-head attention to the same or to other texts.

  Kernels are 2-D, [E, H*K]; `features` is E.
  """

  features: int
  num_heads: int
  head_dim: int
  dropout_rate: float = 0.0
  dtype: str = 'float32'
  attention_fn: AttentionFn = einsum_attention
  out_init: float = 1.0

  def setup(self):
    joined, axes = self.num_heads * self.head_dim, ('embed', 'joined_kv')
    self.query = layers.Dense(
        joined, axes, query_init(self.head_dim), self.dtype
    )
    self.key = layers.Dense(joined, axes, ATTENTION_INIT, self.dtype)
    self.value = layers.Dense(joined, axes, ATTENTION_INIT, self.dtype)
    self.out = layers.Dense(
        self.features, axes[::-1], layers.scaled(ATTENTION_INIT, self.out_init),
        self.dtype,
    )

  def _heads(self, y: jax.Array) -> jax.Array:
    """[R, T, H * K] -> [R, T, H, K]."""
    # The kernel of TPUs takes heads joined; a constraint on an axis of heads
    # would make copies.
    y = nn.with_logical_constraint(y, ('batch', 'length', 'heads'))
    return y.reshape(*y.shape[:-1], self.num_heads, self.head_dim)

  def keys_and_values(
      self, x: jax.Array, dropout: Segments | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Keys and values: [R, T, E] -> [R, T, H, K] each."""
    keys, values = self.key(x, dropout), self.value(x, dropout)
    return self._heads(keys), self._heads(values)

  def __call__(
      self, x: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array,
      mask: jax.Array, dropout: Segments | None = None,
      own: Segments | None = None,
  ) -> jax.Array:
    """Attends from [R, T, E] to keys and values [R, S, H, K]: [R, T, E].

    For bias and mask see `einsum_attention`. `dropout`, the texts of the keys,
    switches dropout of the attention weights on; `own`, those of x, that of
    adapters.
    """
    keep = keep_weights(self, dropout)
    y = self.attention_fn(
        self._heads(self.query(x, own)), keys, values, bias, mask,
        self.dropout_rate, keep,
    )
    return self.out(y.reshape(*x.shape[:-1], -1), own)


class EncoderLayer(nn.Module):
  """Pre-norm self-attention and feed-forward, each with a residual.

  `num_buckets` are those of a bias of its own, for which it gets none; else 0.
  """

  num_heads: int
  head_dim: int
  mlp_dim: int
  activations: Sequence[str]
  dropout_rate: float
  dtype: str
  attention_fn: AttentionFn
  residual_init: float = 1.0
  num_buckets: int = 0

  @nn.compact
  def __call__(
      self, x: jax.Array, bias: jax.Array | None, mask: jax.Array,
      dropout: Segments | None = None,
  ) -> jax.Array:
    """Maps [R, L, E] to [R, L, E]."""
    if bias is None:
      bias = RelativePositionBias(
          self.num_heads, self.num_buckets, name='relpos_bias'
      )(x.shape[1])
    x = nn.with_logical_constraint(x, ('batch', 'length', 'activation_embed'))
    y = layers.RMSNorm(dtype=self.dtype, name='pre_attention_layer_norm')(x)
    attention = Attention(
        x.shape[-1], self.num_heads, self.head_dim, self.dropout_rate,
        self.dtype, self.attention_fn, self.residual_init, name='attention',
    )
    y = attention(
        y, *attention.keys_and_values(y, dropout), bias, mask, dropout, dropout
    )
    x = x + layers.Dropout(self.dropout_rate)(y, dropout)
    y = layers.RMSNorm(dtype=self.dtype, name='pre_mlp_layer_norm')(x)
    y = layers.Mlp(
        self.mlp_dim, self.activations, self.dropout_rate, self.dtype,
        self.residual_init, name='mlp',
    )(y, dropout)
    return x + layers.Dropout(self.dropout_rate)(y, dropout)


class T5Encoder(nn.Module):
  """A stack of T5 encoder layers over embedded tokens.

  Parameters have T5X's names and shapes: `layers_0/attention/query/kernel`
  [E, H*head_dim], `relpos_bias/rel_embedding` [H, num_buckets],
  `encoder_norm/scale`; or, of a bias per layer, `layers_0/relpos_bias/...`.
  With `scan_layers` the layers are one subtree `layers`, every array with a
  leading axis of `num_layers`; Adafactor then takes its per-tensor statistics
  over all layers at once.

  Attributes:
    num_layers: 0 for a bag of words, a baseline of its own.
    num_heads: H.
    head_dim: K.
    mlp_dim: F, the hidden size of the feed-forward block.
    activations: ('gelu', 'linear') for T5 1.1, ('relu',) for T5 1.0.
    dropout_rate: dropout as in T5X; attention weights, too.
    dtype: activation dtype, 'float32' or 'bfloat16'; parameters are float32.
    scan_layers: run the stack as one scan: compiles faster, runs slower.
    remat: recompute each layer in the backward pass to save memory.
    attention_fn: `dot_product_attention` or `einsum_attention`.
    residual_init: factor of what every block adds to the stream at the start;
      near 0, layers start as if absent, so that a trained stack can grow.
    num_buckets: buckets of relative positions, up to 128 tokens apart.
    bias_per_layer: whether each layer has a position bias of its own, as in
      umT5; otherwise all have one.
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
  attention_fn: AttentionFn = dot_product_attention
  residual_init: float = 1.0
  num_buckets: int = 32
  bias_per_layer: bool = False

  def __post_init__(self):
    check_buckets(self.num_buckets, 'T5Encoder.num_buckets')
    layers.check_stack(
        self, 'T5',
        {'num_layers': 0, 'num_heads': 1, 'head_dim': 1, 'mlp_dim': 1},
    )
    super().__post_init__()

  @nn.compact
  def __call__(
      self, x: jax.Array, lengths: jax.Array,
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
    segments = Segments.from_lengths(x.shape[1], lengths, dropout_numbers)
    dropout = None if dropout_numbers is None else segments
    x = layers.Dropout(self.dropout_rate)(x.astype(self.dtype), dropout)
    bias, own_buckets = None, self.num_buckets
    if not self.bias_per_layer:
      bias = RelativePositionBias(
          self.num_heads, self.num_buckets, name='relpos_bias'
      )(x.shape[1])
      own_buckets = 0
    mask = segments.attention_mask()

    layer = EncoderLayer
    if self.remat:
      layer = nn.remat(layer, prevent_cse=not self.scan_layers)
    config = (
        self.num_heads, self.head_dim, self.mlp_dim, tuple(self.activations),
        self.dropout_rate, self.dtype, self.attention_fn, self.residual_init,
        own_buckets,
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
