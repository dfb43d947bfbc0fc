"""A query and a passage joined to one text, as a cross-encoder reads them.

The tokens of both are put between those of the template: a SentencePiece model
that splits at spaces tokenises the whole text alike.
"""

import dataclasses
import re

import numpy as np

from dualenc_jax.data.text.ragged import lengths_to_offsets, Pool, Ragged
from dualenc_jax.data.text.tokenizer import EOS, Tokenizer, Vocabulary
from dualenc_jax.utils.errors import expect, UserError

_FIELD = re.compile(r'\{(query|passage)\}')


@dataclasses.dataclass(frozen=True)
class Template:
  """How a query and a passage become one text.

  Attributes:
    text: with {query} and then {passage}, and spaces around them.
    length: most tokens of the whole, EOS included. The passage is cut to fit,
      never what is around it; a query was cut by the tokenizer.
    eos: whether EOS ends it.
  """

  text: str = 'Query: {query} Document: {passage}'
  length: int = 256
  eos: bool = True

  def __post_init__(self):
    parts = _FIELD.split(self.text) if isinstance(self.text, str) else []
    if (
        parts[1::2] != ['query', 'passage']
        or any('{' in part or '}' in part for part in parts[::2])
        or not all(map(_has_spaces, parts[::2], range(3)))
    ):
      raise UserError(
          f'Template.text is {self.text!r}; expected {{query}}, then'
          " {passage}, each once, no other, and with spaces around: 'Query:"
          " {query} Document: {passage} Relevant:'."
      )
    expect(
        type(self.length) is int and self.length >= 1, 'Template.length',
        self.length, 'a whole number, 1 or more',
    )

  def tokens(self, tokenizer: Tokenizer) -> 'TokenTemplate':
    """The template in tokens; raises UserError if no passage fits."""
    tokenizer.vocabulary.check_ends('A cross-encoder')
    texts = [part.strip() for part in _FIELD.split(self.text)[::2]]
    before, between, after = (
        _pieces(tokenizer.vocabulary, text) for text in texts
    )
    if self.eos:
      after = np.append(after, EOS)
    # A query without its EOS.
    taken = sum(map(len, (before, between, after))) + tokenizer.query_length - 1
    if taken >= self.length:
      raise UserError(
          f'Template.length is {self.length}, but {self.text!r} with a query'
          f' of {tokenizer.query_length} tokens takes {taken}, which leaves no'
          ' room for a passage. Raise it (PAIR_LENGTH in gin, --teacher_length'
          ' of a released ranker), or lower QUERY_LENGTH.'
      )
    return TokenTemplate(before, between, after, self.length)


@dataclasses.dataclass(frozen=True, eq=False)
class TokenTemplate:
  """A template in tokens, int64; `length` is the most of the whole."""

  before: np.ndarray
  between: np.ndarray
  after: np.ndarray
  length: int

  @property
  def fixed(self) -> int:
    """Tokens that stand around query and passage."""
    return len(self.before) + len(self.between) + len(self.after)

  @property
  def room(self) -> int:
    """Tokens of the longest query that leaves a passage one, EOS included."""
    return self.length - self.fixed

  def most(self, query_length: int, passage_length: int) -> int:
    """Tokens of the longest text that these lengths allow."""
    return min(self.fixed + query_length + passage_length - 2, self.length)

  def join(self, queries: Ragged, passages: Ragged) -> Ragged:
    """Texts of query i and passage i: n rows of token ids, both with EOS."""
    joined = PairPool(self, Pool([(queries, {})]), Pool([(passages, {})]))
    rows = np.repeat(np.arange(len(queries))[:, None], 2, axis=1)
    offsets = lengths_to_offsets(joined.lengths(rows))
    values = np.empty(offsets[-1], np.int32)
    joined.copy(rows, values, offsets[:-1])
    return Ragged(values, offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class PairPool:
  """Texts of a query and a passage each, as `Pool` has those of one kind.

  Rows are pairs of numbers, [..., 2], of a query and of a passage; (-1, -1) is
  none. Tokens in both pools have EOS.
  """

  template: TokenTemplate
  queries: Pool
  passages: Pool

  def lengths(self, rows: np.ndarray) -> np.ndarray:
    """Tokens of rows [..., 2], 0 where there is none: int64 [...]."""
    total = sum(self._parts(rows)) + self.template.fixed
    return np.where(rows[..., 1] >= 0, total, 0)

  def copy(self, rows: np.ndarray, out: np.ndarray, starts: np.ndarray) -> None:
    """Writes the tokens of rows [n, 2] into flat `out`, from their starts."""
    query, passage = self._parts(rows)
    at = _write(self.template.before, out, starts)
    self.queries.copy(rows[:, 0], out, at, query)
    at = _write(self.template.between, out, at + query)
    self.passages.copy(rows[:, 1], out, at, passage)
    _write(self.template.after, out, at + passage)

  def _parts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the query and of the passage that are taken, [...] each."""
    query = np.maximum(self.queries.lengths(rows[..., 0]) - 1, 0)
    passage = np.maximum(self.passages.lengths(rows[..., 1]) - 1, 0)
    return query, np.minimum(passage, self.template.room - query)


def _write(tokens: np.ndarray, out: np.ndarray, at: np.ndarray) -> np.ndarray:
  """Writes tokens at each of the places; returns the places after them."""
  out[at[:, None] + np.arange(len(tokens))] = tokens
  return at + len(tokens)


def _pieces(vocabulary: Vocabulary, text: str) -> np.ndarray:
  """The tokens of a text, without EOS."""
  return vocabulary.pieces(text).astype(np.int64)


def _has_spaces(part: str, number: int) -> bool:
  """Whether there are spaces between part 0, 1 or 2 and what it touches."""
  if not part:
    return number != 1
  before = number == 0 or part[0].isspace()
  after = number == 2 or part[-1].isspace()
  return before and after
