"""A re-ranker that reads a passage once, and then the queries it is scored for.

Shapes: R rows, S texts a row, L tokens, T tokens of a query, C passages of a
query, M states of a passage, E model dim.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

from dualenc_jax.models import layers, t5_decoder, t5_encoder
from dualenc_jax.models.cross_encoder import FALSE, TRUE
from dualenc_jax.models.dual_encoder import PAD, row_lengths
from dualenc_jax.models.layers import Segments
from dualenc_jax.models.seq2seq import encoder_decoder
from dualenc_jax.utils.errors import expect


class SplitRanker(nn.Module):
  """A T5 whose encoder reads the passage and whose decoder reads the query.

  It is ED2LM's split (Hui et al. 2022) with a score in place of a likelihood:
  the encoder's states of a passage, pooled to M of them, can be stored; the
  decoder reads the padding token and the query, attends to the states, and

    score = logit(tokens[0]) - logit(tokens[1])

  at its last position is a logit of the probability that the passage is
  relevant. Parameters have T5X's names. A score does not depend on batch or row
  mates or on padding.

  Attributes:
    num_states: M.
    tokens: the two pieces whose logits are compared.
  """

  token_embedder: layers.TokenEmbedder
  encoder: t5_encoder.T5Encoder
  decoder: t5_decoder.T5Decoder
  num_states: int = 16
  tokens: Sequence[int] = (TRUE, FALSE)

  def __post_init__(self):
    expect(
        type(self.num_states) is int and self.num_states > 0,
        'SplitRanker.num_states', self.num_states, 'a whole number above 0',
    )
    known = range(self.token_embedder.vocab_size)
    expect(
        len({*self.tokens}) == 2 and all(n in known for n in self.tokens),
        'SplitRanker.tokens (SCORE_TOKENS)', self.tokens,
        f'two numbers of pieces below VOCAB_SIZE, {len(known)}',
    )
    super().__post_init__()

  def __call__(
      self, queries: jax.Array, passages: jax.Array | None = None
  ) -> jax.Array:
    """Scores pairs: int32 [R, T] and [R, L], padded with 0 -> float32 [R].

    Without passages each query is its own.
    """
    passages = queries if passages is None else passages
    return self.score(queries, self.encode_passage(passages)[:, None])[:, 0]

  def encode_passage(
      self, tokens: jax.Array, lengths: jax.Array | None = None,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """The states of passages, one after the other: float32 [R, S, M E].

    Arguments are those of `DualEncoder.encode_query`; [R, M E] without
    `lengths`. See `pool_states`.
    """
    if lengths is None:
      numbers = row_lengths(tokens, dropout_numbers)
      return self.encode_passage(tokens, *numbers)[:, 0]
    x = self.encoder(self.token_embedder(tokens), lengths, dropout_numbers)
    pooled = pool_states(x, lengths, self.num_states)
    return pooled.reshape(*lengths.shape, -1)

  def score(
      self, queries: jax.Array, states: jax.Array,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """Scores the passages of each query.

    Args:
      queries: int32 [R, T], a query a row, padded with 0.
      states: of `encode_passage`, [R, C, M E].
      dropout_numbers: numbers of the pairs, uint32 [R, C], or None.

    Returns:
      float32 [R, C].
    """
    rows, count = states.shape[:2]
    pairs = rows * count
    states = states.reshape(pairs, self.num_states, -1)
    lengths, _ = row_lengths(queries, None)
    # The query without its EOS, behind the padding token.
    inputs = jnp.pad(queries[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)
    x = jnp.repeat(self.token_embedder(inputs), count, axis=0)
    lengths = jnp.repeat(lengths, count, axis=0)
    dropout: tuple[Segments | None, Segments | None] = (None, None)
    if dropout_numbers is not None:
      numbers = dropout_numbers.reshape(pairs, 1)
      every = jnp.full((pairs, 1), self.num_states, jnp.int32)
      dropout = (
          Segments.from_lengths(queries.shape[1], lengths, numbers),
          Segments.from_lengths(self.num_states, every, numbers),
      )
    seen = jnp.ones((1, 1, self.num_states), bool)
    decoded = self.decoder(x, states, seen, None, dropout)
    last = jnp.maximum(lengths - 1, 0)[:, :, None]
    decoded = jnp.take_along_axis(decoded, last, axis=1)[:, 0]
    logits = self.decoder.logits(
        decoded, self.token_embedder.embedding, self.tokens
    )
    return (logits[:, 0] - logits[:, 1]).reshape(rows, count)


def pool_states(x: jax.Array, lengths: jax.Array, count: int) -> jax.Array:
  """Means of consecutive states: [R, L, E], int32 [R, S] -> [R, S, M, E].

  Mean m of a text of n tokens is over its tokens from floor(m n / M) up to
  floor((m + 1) n / M), and over the first of these at least, as where n < M.
  The means are float32, and zeros for a text without tokens.
  """
  texts = Segments.from_lengths(x.shape[1], lengths)
  parts = jnp.arange(count, dtype=jnp.int32)[None, None]
  first, last = (
      (parts + more) * lengths[:, :, None] // count for more in (0, 1)
  )
  last = jnp.maximum(last, first + 1)
  place = texts.positions[:, :, None, None]
  inside = (place >= first[:, None]) & (place < last[:, None])
  size = lengths.shape[1]
  own = texts.slots[:, :, None] == jnp.arange(size, dtype=jnp.int32)[None, None]
  weights = (inside & own[:, :, :, None]).astype(jnp.float32)
  total = jnp.einsum(
      'rlsm,rle->rsme', weights, x.astype(jnp.float32), precision='highest'
  )
  return total / (last - first)[:, :, :, None]


def split_ranker(
    token_embedder: layers.TokenEmbedder, encoder: t5_encoder.T5Encoder,
    num_states: int = 16, tokens: Sequence[int] = (TRUE, FALSE),
) -> SplitRanker:
  """A `SplitRanker` with a decoder like that of `seq2seq.encoder_decoder`."""
  parts = encoder_decoder(token_embedder, encoder)
  return SplitRanker(
      token_embedder, encoder, parts.decoder, num_states, tuple(tokens)
  )
