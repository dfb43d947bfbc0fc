"""Queries of an exact number of tokens, to measure the cost of a length."""

import numpy as np

from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.utils.errors import UserError

# Of a vocabulary, which are tried as words.
_PIECES = 4096


def queries(tokenizer: Tokenizer, tokens: int, count: int) -> list[str]:
  """Queries that have exactly so many tokens, prefix and EOS included.

  They are at most `count`, of random words that are one token each; equal
  tokenizers give equal texts.

  Raises:
    UserError: no query of the model is as long, or as short; or its vocabulary
      has no words of one token.
  """
  if tokens > tokenizer.query_length:
    raise UserError(
        f'A query of {tokens} tokens is asked for; the model cuts queries to'
        f' {tokenizer.query_length}. Give lengths up to that.'
    )
  vocabulary = tokenizer.vocabulary
  rng = np.random.default_rng(0)
  ids = rng.permutation(vocabulary.size - vocabulary.extra_ids)[:_PIECES]
  pieces = [vocabulary.decode(ids[i : i + 1]) for i in range(len(ids))]
  pieces = [piece for piece in pieces if piece.isalpha()]
  lengths = tokenizer.encode_queries(pieces).lengths
  around = int(min(lengths, default=1)) - 1
  words = [w for w, length in zip(pieces, lengths) if length == around + 1]
  texts = []
  if words and tokens > around:
    drawn = rng.choice(words, (count, tokens - around))
    texts = list(map(' '.join, drawn.tolist()))
  whole = [tokenizer.query_prefix + text for text in texts]
  exact = vocabulary.encode(whole, tokens + 1).lengths == tokens
  if not exact.any():
    raise UserError(
        f'Cannot make a query of exactly {tokens} tokens from words of one'
        f' token each: {vocabulary.file} has {len(words)} of them; prefix and'
        f' EOS take {around}. Give more tokens, or queries of your own.'
    )
  return [text for text, is_exact in zip(texts, exact) if is_exact]
