"""The dual encoder: two towers, and which parts they share.

Shapes: B rows, L tokens, E model dim, D embedding dim.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.models import layers
from dualenc_jax.models import t5_encoder

PAD = 0


def mean_pool(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Mean over real tokens in float32: [B, L, E], bool [B, L] -> [B, E].

  A row without a real token pools to zero.
  """
  weights = mask.astype(jnp.float32)[:, :, None]
  total = jnp.sum(x.astype(jnp.float32) * weights, axis=1)
  return total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)


def l2_normalize(x: jax.Array, epsilon: float = 1e-12) -> jax.Array:
  """Scales the rows of float32 [B, D] to length one; a zero row stays zero."""
  square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, epsilon))


class Projection(nn.Module):
  """One linear map [B, E] -> [B, D] without bias, in full float32."""

  features: int = 768

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel = self.param(
        'kernel',
        nn.with_logical_partitioning(
            nn.initializers.variance_scaling(
                1.0, 'fan_in', 'truncated_normal'
            ),
            ('embed', 'embedding_dim'),
        ),
        (x.shape[-1], self.features),
        jnp.float32,
    )
    return jnp.dot(x, kernel, precision='highest')


class DualEncoder(nn.Module):
  """Query and passage towers of a token embedder, an encoder, a projection.

  The first three attributes are the query tower. The passage tower uses the
  same part wherever its own is None, so the variants of Dong et al. (2022)
  are which of the last three are given:

    SDE      none: every parameter is shared.
    ADE      all three: nothing is shared.
    ADE-STE  encoder and projection: the token embedder is shared.
    ADE-FTE  all three, the token embedders frozen by the optimizer.
    ADE-SPL  token embedder and encoder: the projection is shared.

  Towers may differ in depth; with a shared projection they agree in width.
  An embedding does not depend on its batch mates or on the padding length.
  """

  token_embedder: layers.TokenEmbedder
  encoder: t5_encoder.T5Encoder
  projection: Projection
  passage_token_embedder: layers.TokenEmbedder | None = None
  passage_encoder: t5_encoder.T5Encoder | None = None
  passage_projection: Projection | None = None

  def __post_init__(self):
    query = self.token_embedder
    passage = self.passage_token_embedder or query
    shared = [
        part
        for part in ('encoder', 'projection')
        if getattr(self, f'passage_{part}') is None
    ]
    if shared and query.features != passage.features:
      missing = ' and '.join(f'passage_{part}' for part in shared)
      raise UserError(
          f'DualEncoder.token_embedder.features is {query.features} and'
          f' passage_token_embedder.features is {passage.features}, but the'
          f' towers share the {" and the ".join(shared)}, so they must agree.'
          f' Make them equal, or give {missing} too.'
      )
    own = self.passage_projection
    if own is not None and own.features != self.projection.features:
      raise UserError(
          f'DualEncoder.projection.features is {self.projection.features} and'
          f' passage_projection.features is {own.features}; expected equal'
          ' numbers, so that queries and passages can be compared.'
      )
    super().__post_init__()

  def encode_query(
      self, tokens: jax.Array, dropout_rows: jax.Array | None = None
  ) -> jax.Array:
    """Embeds queries: int32 [B, L], padded with 0 -> float32 [B, D], norm 1.

    Dropout is off without `dropout_rows`, row numbers [B]; see `T5Encoder`.
    """
    return self._encode(
        tokens,
        self.token_embedder,
        self.encoder,
        self.projection,
        dropout_rows,
    )

  def encode_passage(
      self, tokens: jax.Array, dropout_rows: jax.Array | None = None
  ) -> jax.Array:
    """Embeds passages as `encode_query` embeds queries."""
    return self._encode(
        tokens,
        self.passage_token_embedder or self.token_embedder,
        self.passage_encoder or self.encoder,
        self.passage_projection or self.projection,
        dropout_rows,
    )

  def __call__(
      self, query_tokens: jax.Array, passage_tokens: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Both towers once; touches every parameter, so it initialises them."""
    return self.encode_query(query_tokens), self.encode_passage(passage_tokens)

  def _encode(self, tokens, token_embedder, encoder, projection, dropout_rows):
    mask = tokens != PAD
    x = encoder(token_embedder(tokens), mask, dropout_rows)
    embedding = l2_normalize(projection(mean_pool(x, mask)))
    return nn.with_logical_constraint(embedding, ('batch', 'embedding_dim'))
