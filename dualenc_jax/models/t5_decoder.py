"""The T5 decoder stack: teacher forcing, and one step with a cache.

Shapes: R rows, T target positions, L source tokens, E model dim, H heads, K
head_dim, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.models import layers
from dualenc_jax.models.t5_encoder import (
  einsum_attention,
  RelativePositionBias,
)


class Cache(NamedTuple):
  """Keys and values of a layer so far, and those of the source.

  Attributes:
    keys: of the target, [R, T, H, K], zeros from the present position on.
    values: the same.
    source_keys: [R, L, H, K].
    source_values: the same.
  """

  keys: jax.Array
  values: jax.Array
  source_keys: jax.Array
  source_values: jax.Array


class Attention(nn.Module):
  """T5 multi-head attention of targets to themselves or to the source."""

  features: int
  num_heads: int
  head_dim: int
  dtype: str = 'float32'

  def setup(self):
    init = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')

    def query_init(*args):
      return init(*args) / np.sqrt(self.head_dim).astype(np.float32)

    joined, axes = self.num_heads * self.head_dim, ('embed', 'joined_kv')
    self.query = layers.Dense(joined, axes, query_init, self.dtype)
    self.key = layers.Dense(joined, axes, init, self.dtype)
    self.value = layers.Dense(joined, axes, init, self.dtype)
    self.out = layers.Dense(self.features, axes[::-1], init, self.dtype)

  def _heads(self, x: jax.Array) -> jax.Array:
    """[R, T, H * K] -> [R, T, H, K]."""
    return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)

  def keys_and_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of [R, T, E]: [R, T, H, K] each."""
    return self._heads(self.key(x)), self._heads(self.value(x))

  def __call__(
      self,
      x: jax.Array,
      keys: jax.Array,
      values: jax.Array,
      bias: jax.Array,
      mask: jax.Array,
  ) -> jax.Array:
    """What [R, T, E] find among keys and values [R, S, H, K]: [R, T, E]."""
    query = self._heads(self.query(x))
    found = einsum_attention(query, keys, values, bias, mask)
    return self.out(found.reshape(*x.shape[:-1], -1))


class DecoderLayer(nn.Module):
  """Self-attention, attention to the source, and feed-forward, with residuals.

  `cached` computes one position; `__call__` all of them at once.
  """

  num_heads: int
  head_dim: int
  mlp_dim: int
  features: int
  activations: Sequence[str]
  dtype: str

  def setup(self):
    attention = (self.num_heads, self.head_dim, self.dtype)
    self.self_attention = Attention(self.features, *attention)
    self.encoder_decoder_attention = Attention(self.features, *attention)
    self.mlp = layers.Mlp(self.mlp_dim, self.activations, dtype=self.dtype)
    self.pre_self_attention_layer_norm = layers.RMSNorm(dtype=self.dtype)
    self.pre_cross_attention_layer_norm = layers.RMSNorm(dtype=self.dtype)
    self.pre_mlp_layer_norm = layers.RMSNorm(dtype=self.dtype)

  def __call__(
      self,
      x: jax.Array,
      encoded: jax.Array,
      bias: jax.Array,
      mask: jax.Array,
      source_mask: jax.Array,
  ) -> jax.Array:
    """Maps [R, T, E] to [R, T, E]; for masks see `T5Decoder`."""
    y = self.pre_self_attention_layer_norm(x)
    x = x + self.self_attention(
        y, *self.self_attention.keys_and_values(y), bias, mask
    )
    source = self.encoder_decoder_attention.keys_and_values(encoded)
    return self._after(x, source, source_mask)

  def cached(
      self,
      x: jax.Array,
      cache: Cache,
      position: jax.Array,
      bias: jax.Array,
      source_mask: jax.Array,
  ) -> tuple[jax.Array, Cache]:
    """Maps [R, 1, E] at a position to the same, and the cache after it."""
    y = self.pre_self_attention_layer_norm(x)
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, new, position, 1)
        for old, new in zip(cache[:2], self.self_attention.keys_and_values(y))
    )
    seen = jnp.arange(keys.shape[1], dtype=jnp.int32) <= position
    x = x + self.self_attention(
        y, keys, values, bias, seen[None, None, None]
    )
    x = self._after(x, cache[2:], source_mask)
    return x, cache._replace(keys=keys, values=values)

  def _after(self, x, source, source_mask):
    y = self.pre_cross_attention_layer_norm(x)
    no_bias = jnp.zeros((1, 1, 1, 1), jnp.float32)
    x = x + self.encoder_decoder_attention(y, *source, no_bias, source_mask)
    return x + self.mlp(self.pre_mlp_layer_norm(x))


class T5Decoder(nn.Module):
  """A stack of T5 decoder layers over embedded targets, and its logits.

  Parameters have T5X's names and shapes:
  `layers_0/self_attention/query/kernel`, `layers_0/encoder_decoder_attention/`
  and so on, `relpos_bias/rel_embedding`, `decoder_norm/scale`, and, where the
  output is not tied to the token embeddings, `logits_dense/kernel` [E, V].

  Attributes:
    features: E.
    num_layers: depth.
    num_heads: H.
    head_dim: size of one head.
    mlp_dim: hidden size of the feed-forward block.
    vocab_size: V of `logits_dense`; None for logits by the token embeddings,
      divided by sqrt(E), as in T5 1.0.
    activations: ('gelu', 'linear') for T5 1.1, ('relu',) for T5 1.0.
    dtype: activation dtype.
  """

  features: int
  num_layers: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  vocab_size: int | None = None
  activations: Sequence[str] = ('gelu', 'linear')
  dtype: str = 'float32'

  def setup(self):
    self.layers = [
        DecoderLayer(
            self.num_heads,
            self.head_dim,
            self.mlp_dim,
            self.features,
            tuple(self.activations),
            self.dtype,
        )
        for _ in range(self.num_layers)
    ]
    self.relpos_bias = RelativePositionBias(
        self.num_heads, bidirectional=False
    )
    self.decoder_norm = layers.RMSNorm(dtype=self.dtype)
    if self.vocab_size is not None:
      self.logits_dense = layers.Dense(
          self.vocab_size, ('embed', 'vocab'), dtype='float32'
      )

  def __call__(
      self,
      x: jax.Array,
      encoded: jax.Array,
      source_mask: jax.Array,
      mask: jax.Array | None = None,
  ) -> jax.Array:
    """Decodes all positions at once (teacher forcing).

    Args:
      x: the embedded targets so far, [R, T, E].
      encoded: the encoder's output, [R, L, E].
      source_mask: bool, broadcast to [R, T, L]: where a target may look.
      mask: bool, broadcast to [R, T, T], which targets a target sees; None for
        those before it and itself.

    Returns:
      [R, T, E], normed; `logits` makes logits of it.
    """
    length = x.shape[1]
    if mask is None:
      mask = jnp.tril(jnp.ones((1, length, length), bool))
    bias = self.relpos_bias(length)
    x = x.astype(self.dtype)
    for layer in self.layers:
      x = layer(x, encoded, bias, mask[:, None], source_mask[:, None])
    return self.decoder_norm(x)

  def start(self, encoded: jax.Array, length: int) -> list[Cache]:
    """The caches before the first of `length` positions."""
    shape = encoded.shape[0], length, self.num_heads, self.head_dim
    zeros = jnp.zeros(shape, self.dtype)
    return [
        Cache(
            zeros,
            zeros,
            *layer.encoder_decoder_attention.keys_and_values(encoded),
        )
        for layer in self.layers
    ]

  def step(
      self,
      x: jax.Array,
      caches: Sequence[Cache],
      position: jax.Array,
      source_mask: jax.Array,
  ) -> tuple[jax.Array, list[Cache]]:
    """Decodes one position.

    Args:
      x: the embedded target at it, [R, 1, E].
      caches: of `start`, or of the step before.
      position: int32 [].
      source_mask: bool [R, 1, L].

    Returns:
      [R, 1, E], normed, and the caches after it.
    """
    everything = self.relpos_bias(caches[0].keys.shape[1])
    bias = jax.lax.dynamic_slice_in_dim(everything, position, 1, 2)
    x, new = x.astype(self.dtype), []
    for layer, cache in zip(self.layers, caches, strict=True):
      x, cache = layer.cached(x, cache, position, bias, source_mask[:, None])
      new.append(cache)
    return self.decoder_norm(x), new

  def logits(
      self,
      x: jax.Array,
      embedding: jax.Array,
      tokens: Sequence[int] | None = None,
  ) -> jax.Array:
    """Logits of the next token: [..., E] -> float32 [..., V].

    Args:
      x: what `__call__` or `step` returned.
      embedding: of the tokens, [V, E], to which T5 1.0 ties the output.
      tokens: compute those of these alone: [..., len(tokens)].
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
    kernel = self.logits_dense.variables['params']['kernel']
    kernel = nn.unbox(kernel)[:, np.array(tokens)]
    return jnp.einsum('...e,ev->...v', x, kernel, precision='highest')
