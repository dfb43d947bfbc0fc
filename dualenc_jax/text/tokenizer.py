"""Texts to token rows: a vocabulary and two lengths."""

from collections.abc import Sequence
import dataclasses

from dualenc_jax.errors import UserError
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Encodes queries and passages; every row ends with EOS.

  Attributes:
    vocabulary: the SentencePiece vocabulary of both sides.
    query_length: most tokens of a query, EOS included.
    passage_length: most tokens of a passage, EOS included.
    query_prefix: put in front of every query, such as 'query: '; its tokens
      count.
    passage_prefix: put in front of every passage and hard negative.
  """

  vocabulary: Vocabulary
  query_length: int = 64
  passage_length: int = 256
  query_prefix: str = ''
  passage_prefix: str = ''

  def __post_init__(self):
    for name in ('query_length', 'passage_length'):
      if getattr(self, name) < 2:
        raise UserError(
            f'Tokenizer.{name} is {getattr(self, name)}; expected at least 2:'
            ' one token and EOS.'
        )
    for name in ('query_prefix', 'passage_prefix'):
      if not isinstance(getattr(self, name), str):
        raise UserError(
            f'Tokenizer.{name} is {getattr(self, name)!r}; expected a string,'
            " '' for none."
        )

  @property
  def prefixes(self) -> dict[str, str]:
    """Those that are not empty, by name."""
    names = 'query_prefix', 'passage_prefix'
    return {n: getattr(self, n) for n in names if getattr(self, n)}

  def encode_queries(self, texts: Sequence[str], threads: int = -1) -> Ragged:
    """Rows of at most `query_length` token ids."""
    texts = [self.query_prefix + text for text in texts]
    return self.vocabulary.encode(texts, self.query_length, threads)

  def encode_passages(self, texts: Sequence[str], threads: int = -1) -> Ragged:
    """Rows of at most `passage_length` token ids."""
    texts = [self.passage_prefix + text for text in texts]
    return self.vocabulary.encode(texts, self.passage_length, threads)
