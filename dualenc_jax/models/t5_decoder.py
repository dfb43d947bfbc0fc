"""The T5 decoder stack, for teacher forcing or step by step with a cache.

Shapes: R rows, T target positions, L source tokens, n targets of a row, which
share its source, E model dim, H heads, K head_dim, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.models import layers, t5_encoder
from dualenc_jax.models.layers import Segments
from dualenc_jax.parallel import data_axis


class Cache(NamedTuple):
  """Keys and values of a layer, of the targets so far and of the source.

  Keys and values of targets [R n, T, H, K] are meaningless from the present
  position on; those of the source are [R, L, H, K].
  """

  keys: jax.Array
  values: jax.Array
  source_keys: jax.Array
  source_values: jax.Array


class DecoderLayer(nn.Module):
  """Self-attention, attention to the source, and feed-forward, with residuals.

  `cached` computes one position, `__call__` all of them at once.
  """

  num_heads: int
  head_dim: int
  mlp_dim: int
  features: int
  activations: Sequence[str]
  dropout_rate: float
  dtype: str

  def setup(self):
    attention = (
        self.features, self.num_heads, self.head_dim, self.dropout_rate,
        self.dtype,
    )
    self.self_attention = t5_encoder.Attention(*attention)
    self.encoder_decoder_attention = t5_encoder.Attention(*attention)
    self.mlp = layers.Mlp(
        self.mlp_dim, self.activations, self.dropout_rate, self.dtype
    )
    self.dropout = layers.Dropout(self.dropout_rate)
    self.pre_self_attention_layer_norm = layers.RMSNorm(dtype=self.dtype)
    self.pre_cross_attention_layer_norm = layers.RMSNorm(dtype=self.dtype)
    self.pre_mlp_layer_norm = layers.RMSNorm(dtype=self.dtype)

  def __call__(
      self, x: jax.Array, encoded: jax.Array, bias: jax.Array, mask: jax.Array,
      source_mask: jax.Array, dropout: Sequence[Segments | None] = (None, None),
  ) -> jax.Array:
    """Maps [R, T, E] to [R, T, E]; see `T5Decoder` for the arguments."""
    y = self.pre_self_attention_layer_norm(x)
    y = self.self_attention(
        y, *self.self_attention.keys_and_values(y, dropout[0]), bias, mask,
        dropout[0], dropout[0],
    )
    x = x + self.dropout(y, dropout[0])
    source = self.encoder_decoder_attention.keys_and_values(
        encoded, dropout[1]
    )
    return self._after(x, source, source_mask, dropout)

  def cached(
      self, x: jax.Array, cache: Cache, positions: jax.Array, bias: jax.Array,
      source_mask: jax.Array,
  ) -> tuple[jax.Array, Cache]:
    """The part of this layer in `T5Decoder.step`."""
    alone = self.pre_self_attention_layer_norm(x).reshape(-1, 1, x.shape[-1])
    length = cache.keys.shape[1]
    place = jnp.arange(length, dtype=jnp.int32)[None]
    at = positions.reshape(-1, 1)
    keys, values = (
        jnp.where((place == at)[:, :, None, None], new, old)
        for old, new in zip(
            cache[:2], self.self_attention.keys_and_values(alone)
        )
    )
    seen = (place <= at)[:, None, None]
    y = self.self_attention(alone, keys, values, bias, seen)
    x = self._after(x + y.reshape(x.shape), cache[2:], source_mask)
    return x, cache._replace(keys=keys, values=values)

  def _after(self, x, source, source_mask, dropout=(None, None)):
    y = self.pre_cross_attention_layer_norm(x)
    no_bias = jnp.zeros((1, 1, 1, 1), jnp.float32)
    y = self.encoder_decoder_attention(
        y, *source, no_bias, source_mask, dropout[1], dropout[0]
    )
    x = x + self.dropout(y, dropout[0])
    y = self.mlp(self.pre_mlp_layer_norm(x), dropout[0])
    return x + self.dropout(y, dropout[0])


class T5Decoder(nn.Module):
  """A stack of T5 decoder layers over embedded targets, and its logits.

  Parameters have T5X's names and shapes:
  `layers_0/self_attention/query/kernel`, `layers_0/encoder_decoder_attention/`
  and so on, `relpos_bias/rel_embedding`, `decoder_norm/scale`, and, where the
  output is not tied to the token embeddings, `logits_dense/kernel` [E, V].

  The other attributes are those of `T5Encoder`.

  Attributes:
    features: E.
    vocab_size: V of `logits_dense`; None takes logits by the token embeddings,
      divided by sqrt(E), as in T5 1.0.
  """

  features: int
  num_layers: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  vocab_size: int | None = None
  activations: Sequence[str] = ('gelu', 'linear')
  dropout_rate: float = 0.0
  dtype: str = 'float32'

  def setup(self):
    self.layers = [
        DecoderLayer(
            self.num_heads, self.head_dim, self.mlp_dim, self.features,
            tuple(self.activations), self.dropout_rate, self.dtype,
        )
        for _ in range(self.num_layers)
    ]
    self.relpos_bias = t5_encoder.RelativePositionBias(
        self.num_heads, bidirectional=False
    )
    self.decoder_norm = layers.RMSNorm(dtype=self.dtype)
    self.dropout = layers.Dropout(self.dropout_rate)
    self.last_dropout = layers.Dropout(self.dropout_rate, shared=False)
    if self.vocab_size is not None:
      self.logits_dense = layers.Dense(
          self.vocab_size, ('embed', 'vocab'), dtype='float32'
      )

  def __call__(
      self, x: jax.Array, encoded: jax.Array, source_mask: jax.Array,
      mask: jax.Array | None = None,
      dropout: Sequence[Segments | None] = (None, None),
  ) -> jax.Array:
    """Decodes all positions at once (teacher forcing).

    Args:
      x: the embedded targets so far, [R, T, E].
      encoded: the encoder's output, [R, L, E].
      source_mask: bool, broadcast to [R, T, L], True where a target sees.
      mask: bool, broadcast to [R, T, T], True where a target sees another; None
        for the targets before it and itself.
      dropout: the targets and sources of the rows, whose numbers it depends on;
        None switches dropout off.

    Returns:
      [R, T, E], normed; `logits` turns it into logits.
    """
    length = x.shape[1]
    if mask is None:
      mask = jnp.tril(jnp.ones((1, length, length), bool))
    bias = self.relpos_bias(length)
    x = self.dropout(x.astype(self.dtype), dropout[0])
    for layer in self.layers:
      x = layer(x, encoded, bias, mask[:, None], source_mask[:, None], dropout)
    return self.last_dropout(self.decoder_norm(x), dropout[0])

  def start(
      self, encoded: jax.Array, length: int, targets: int = 1
  ) -> list[Cache]:
    """The caches of n targets a row before the first of T positions.

    `encoded` is the encoder's output, [R, L, E].
    """
    rows = encoded.shape[0] * targets
    shape = rows, length, self.num_heads, self.head_dim
    zeros = jnp.zeros(shape, self.dtype)
    attentions = [layer.encoder_decoder_attention for layer in self.layers]
    return [
        Cache(zeros, zeros, *attention.keys_and_values(encoded))
        for attention in attentions
    ]

  def biases(self, length: int) -> jax.Array:
    """The position biases of T positions for `step`: float32 [T, H, T]."""
    return jnp.swapaxes(self.relpos_bias(length)[0], 0, 1)

  def step(
      self, x: jax.Array, caches: Sequence[Cache], positions: jax.Array,
      biases: jax.Array, source_mask: jax.Array,
  ) -> tuple[jax.Array, list[Cache]]:
    """Decodes one position of each target: [R, n, E], normed, and the caches.

    Inputs are the embedded tokens there, [R, n, E], the caches of `start` or of
    the step before, positions int32 [R, n] and source_mask bool [R, 1, L].
    """
    # A target that has ended may stand behind the last position.
    bias = jnp.take(biases, positions.reshape(-1), axis=0, mode='clip')
    bias = bias[:, :, None]
    x, new = x.astype(self.dtype), []
    for layer, cache in zip(self.layers, caches, strict=True):
      x, cache = layer.cached(x, cache, positions, bias, source_mask[:, None])
      new.append(cache)
    return self.decoder_norm(x), new

  def logits(
      self, x: jax.Array, embedding: jax.Array,
      tokens: Sequence[int] | None = None,
  ) -> jax.Array:
    """Logits of the next token: [..., E] -> float32 [..., V].

    `embedding` [V, E] is the one to which T5 1.0 ties the output; with `tokens`
    only their logits are computed.
    """
    x = x.astype(jnp.float32)
    if self.vocab_size is None:
      rows = embedding if tokens is None else embedding[np.array(tokens)]
      x = x / np.sqrt(self.features).astype(np.float32)
      return jnp.einsum('...e,ve->...v', x, rows, precision='highest')
    if tokens is None:
      return self.logits_dense(x)
    if self.is_initializing():
      self.logits_dense(x)
    dense = self.logits_dense
    kernel = nn.unbox(dense.variables['params']['kernel'])
    kernel = data_axis.gather_param(kernel, dense.kernel_axes, dense.dtype)
    kernel = kernel[:, np.array(tokens)]
    return jnp.einsum('...e,ev->...v', x, kernel, precision='highest')
