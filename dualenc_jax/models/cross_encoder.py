"""Cross-encoders, which score a query and a passage joined to one text.

Shapes: R rows, S texts a row, L tokens, E model dim.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

from dualenc_jax.models import layers, t5_decoder, t5_encoder
from dualenc_jax.models.dual_encoder import mean_pool, PAD, row_lengths
from dualenc_jax.models.gemma_encoder import GemmaEncoder
from dualenc_jax.models.layers import Segments
from dualenc_jax.utils.errors import expect

POOLING = ('mean', 'first')
# Pieces of T5's vocabulary.
TRUE, FALSE, EXTRA_ID_10 = 1176, 6136, 32089


class ScoreHead(nn.Module):
  """One linear map [..., E] -> [...], in full float32.

  Attributes:
    pooling: the state that is scored: 'mean' of a text's tokens, or 'first'.
  """

  pooling: str = 'mean'

  def __post_init__(self):
    expect(
        self.pooling in POOLING, 'ScoreHead.pooling', self.pooling,
        f'one of {", ".join(map(repr, POOLING))}',
    )
    super().__post_init__()

  @nn.compact
  def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Scores of the texts of rows: [R, L, E], int32 [R, S] -> [R, S]."""
    kernel = layers.parameter(
        self, 'kernel', layers.KERNEL_INIT, (x.shape[-1], 1), ('embed', None)
    )
    bias = layers.parameter(self, 'bias', nn.initializers.zeros, (1,), (None,))
    pool = mean_pool if self.pooling == 'mean' else first_token
    scores = jnp.dot(pool(x, lengths), kernel, precision='highest')
    return scores[..., 0] + bias[0]


def first_token(x: jax.Array, lengths: jax.Array) -> jax.Array:
  """The first token of each text, float32: [R, L, E] -> [R, S, E]."""
  starts = jnp.cumsum(lengths, axis=1, dtype=jnp.int32) - lengths
  starts = jnp.minimum(starts, x.shape[1] - 1)[:, :, None]
  return jnp.take_along_axis(x.astype(jnp.float32), starts, axis=1)


class CrossEncoder(nn.Module):
  """An encoder over texts of a query and a passage, and a score of each text.

  It is RankT5's encoder-only form (Zhuang et al. 2022). A score is a logit and
  does not depend on batch or row mates or on padding.
  """

  token_embedder: layers.TokenEmbedder
  encoder: t5_encoder.T5Encoder | GemmaEncoder
  head: ScoreHead

  def __call__(
      self, tokens: jax.Array, lengths: jax.Array | None = None,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """Scores pairs: float32 [R, S], or [R] without `lengths`.

    Arguments are those of `DualEncoder.encode_query`.
    """
    if lengths is None:
      return self(tokens, *row_lengths(tokens, dropout_numbers))[:, 0]
    x = self.encoder(self.token_embedder(tokens), lengths, dropout_numbers)
    return nn.with_logical_constraint(self.head(x, lengths), ('batch', 'texts'))


class Seq2SeqRanker(nn.Module):
  """A T5 that scores by its first output token: monoT5 and RankT5.

  monoT5 is of Nogueira et al. (2020), RankT5 of Zhuang et al. (2022), as
  released. No product with the whole vocabulary is computed.

  Attributes:
    tokens: as in monoT5 (true, false), whose difference of logits is the score,
      a logit of a probability; or as in RankT5 one token, whose logit it is.
  """

  token_embedder: layers.TokenEmbedder
  encoder: t5_encoder.T5Encoder
  decoder: t5_decoder.T5Decoder
  tokens: Sequence[int] = (TRUE, FALSE)

  def __call__(
      self, tokens: jax.Array, lengths: jax.Array | None = None,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """Scores texts; arguments and result as of `CrossEncoder`."""
    if lengths is None:
      return self(tokens, *row_lengths(tokens, dropout_numbers))[:, 0]
    encoded = self.encoder(
        self.token_embedder(tokens), lengths, dropout_numbers
    )
    rows, texts = lengths.shape
    # The texts of a row are positions of one target, each with its own source.
    members = Segments.from_lengths(tokens.shape[1], lengths).members() > 0
    start = self.token_embedder(jnp.full((rows, texts), PAD, jnp.int32))
    own = jnp.eye(texts, dtype=bool)[None]
    decoded = self.decoder(start, encoded, jnp.swapaxes(members, 1, 2), own)
    logits = self.decoder.logits(
        decoded, self.token_embedder.embedding, self.tokens
    )
    if len(self.tokens) == 1:
      return logits[..., 0]
    return logits[..., 0] - logits[..., 1]
