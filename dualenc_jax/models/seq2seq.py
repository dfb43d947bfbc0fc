"""T5 with encoder and decoder, which reads a text and writes another.

Shapes: R rows, S texts a row, L source tokens, T target tokens, n targets a
source, E model dim, V vocabulary.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

from dualenc_jax.models import layers, t5_decoder, t5_encoder
from dualenc_jax.models.dual_encoder import PAD, row_lengths
from dualenc_jax.models.layers import Segments


class Seq2Seq(nn.Module):
  """T5 as it was published, 1.0 or 1.1; parameters have T5X's names."""

  token_embedder: layers.TokenEmbedder
  encoder: t5_encoder.T5Encoder
  decoder: t5_decoder.T5Decoder

  def __call__(
      self, sources: jax.Array, targets: jax.Array | None = None,
      source_lengths: jax.Array | None = None,
      target_lengths: jax.Array | None = None,
      dropout_numbers: jax.Array | None = None,
  ) -> jax.Array:
    """Logits of every target token, given those before it (teacher forcing).

    Args:
      sources: int32 [R, L]; a row is a text, padded with 0, or several, one
        after the other.
      targets: int32 [R, T], alike, in the order of their sources; EOS ends
        each. None for the sources themselves.
      source_lengths: int32 [R, S], tokens of the texts of a row; None where
        every row is one text.
      target_lengths: int32 [R, S], tokens of the targets of a row, or None.
      dropout_numbers: numbers of the texts, uint32 [R, S], or [R] without
        lengths; None switches dropout off. See `T5Encoder`.

    Returns:
      float32 [R, T, V], meaningless where there is no token.
    """
    if targets is None:
      targets = sources
    if source_lengths is None:
      target_lengths, _ = row_lengths(targets, None)
      source_lengths, dropout_numbers = row_lengths(sources, dropout_numbers)
    assert target_lengths is not None
    encoded = self.encoder(
        self.token_embedder(sources), source_lengths, dropout_numbers
    )
    source, target = (
        Segments.from_lengths(tokens.shape[1], lengths, dropout_numbers)
        for tokens, lengths in zip(
            (sources, targets), (source_lengths, target_lengths)
        )
    )
    # The input of each text is the padding token, then its own tokens.
    inputs = jnp.where(target.positions == 0, PAD, jnp.roll(targets, 1, axis=1))
    length = targets.shape[1]
    own = target.slots[:, :, None] == target.slots[:, None, :]
    decoded = self.decoder(
        self.token_embedder(inputs),
        encoded,
        target.slots[:, :, None] == source.slots[:, None, :],
        own & jnp.tril(jnp.ones((1, length, length), bool)),
        (None, None) if dropout_numbers is None else (target, source),
    )
    return self.logits(decoded)

  def encode(self, sources: jax.Array) -> jax.Array:
    """Encodes the sources: int32 [R, L], a text a row -> [R, L, E]."""
    lengths, _ = row_lengths(sources, None)
    return self.encoder(self.token_embedder(sources), lengths)

  def start(
      self, sources: jax.Array, length: int, targets: int
  ) -> list[t5_decoder.Cache]:
    """The caches of n targets of each source; see `T5Decoder.start`."""
    return self.decoder.start(self.encode(sources), length, targets)

  def biases(self, length: int) -> jax.Array:
    """See `T5Decoder.biases`."""
    return self.decoder.biases(length)

  def step(
      self, tokens: jax.Array, caches: Sequence[t5_decoder.Cache],
      positions: jax.Array, biases: jax.Array, source_mask: jax.Array,
  ) -> tuple[jax.Array, list[t5_decoder.Cache]]:
    """Logits float32 [R, n, V] of each target's next token, and the caches.

    Arguments are those of `T5Decoder.step`, with tokens int32 [R, n] at
    `positions` in place of `x`; the token at position 0 is 0.
    """
    x, caches = self.decoder.step(
        self.token_embedder(tokens), caches, positions, biases, source_mask
    )
    return self.logits(x), caches

  def logits(self, x: jax.Array) -> jax.Array:
    """Logits of the decoder's output: [..., E] -> float32 [..., V]."""
    return self.decoder.logits(x, self.token_embedder.embedding)


def encoder_decoder(
    token_embedder: layers.TokenEmbedder, encoder: t5_encoder.T5Encoder
) -> Seq2Seq:
  """A T5 whose decoder has the sizes of its encoder, as released T5s have.

  T5 1.0, whose feed-forward blocks have one activation, ties its output to the
  token embeddings; T5 1.1 has an output layer of its own. Below an encoder
  without layers, a bag of pieces, the decoder has one.
  """
  is_tied = len(encoder.activations) == 1
  return Seq2Seq(
      token_embedder,
      encoder,
      t5_decoder.T5Decoder(
          token_embedder.features,
          max(encoder.num_layers, 1),
          encoder.num_heads,
          encoder.head_dim,
          encoder.mlp_dim,
          None if is_tied else token_embedder.vocab_size,
          tuple(encoder.activations),
          encoder.dropout_rate,
          encoder.dtype,
      ),
  )


def token_losses(
    logits: jax.Array, targets: jax.Array, z_loss: float = 0.0
) -> jax.Array:
  """Cross-entropy of each token of targets [R, T], as T5X computes it.

  It is 0 at best, except for the z-loss: `z_loss` is a factor of the squared
  logarithm of the partition function.
  """
  log_z = jax.nn.logsumexp(logits, axis=-1)
  # A comparison, not a gather: its gradient is no scatter, and it needs no
  # logits of another device where the vocabulary is sharded.
  tokens = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
  of_target = jnp.sum(
      jnp.where(tokens == targets[:, :, None], logits, 0.0), axis=-1
  )
  losses = log_z - of_target
  if z_loss:
    losses += z_loss * jnp.square(log_z)
  return losses
