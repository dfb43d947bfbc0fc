"""A T5 that scores a query and a passage by its first output token.

monoT5 (Nogueira et al. 2020) and RankT5 (Zhuang et al. 2022), as released.
Shapes: R rows, S texts a row, L tokens.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

from dualenc_jax.models import layers, t5_decoder, t5_encoder
from dualenc_jax.models.dual_encoder import one_a_row, PAD
from dualenc_jax.models.layers import Segments

# Of T5's vocabulary.
TRUE, FALSE, EXTRA_ID_10 = 1176, 6136, 32089


class Seq2SeqRanker(nn.Module):
  """Encoder, one position of the decoder, and one or two of its logits.

  No product with the whole vocabulary is computed.

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
      return self(tokens, *one_a_row(tokens, dropout_numbers))[:, 0]
    encoded = self.encoder(
        self.token_embedder(tokens), lengths, dropout_numbers
    )
    rows, texts = lengths.shape
    # The texts of a row are positions of one target, each with its own source.
    members = Segments.of(tokens.shape[1], lengths).members() > 0
    start = self.token_embedder(jnp.full((rows, texts), PAD, jnp.int32))
    own = jnp.eye(texts, dtype=bool)[None]
    found = self.decoder(start, encoded, jnp.swapaxes(members, 1, 2), own)
    logits = self.decoder.logits(
        found, self.token_embedder.embedding, self.tokens
    )
    if len(self.tokens) == 1:
      return logits[..., 0]
    return logits[..., 0] - logits[..., 1]
