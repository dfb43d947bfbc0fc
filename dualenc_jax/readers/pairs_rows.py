"""A row of named columns as pairs: what the columns are, and their checks."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from dualenc_jax.readers import rows
from dualenc_jax.readers.rows import BadRow


class PairRow(NamedTuple):
  """A query with its P passages and its hard negatives.

  Attributes:
    query: text.
    passages: P texts, each with its title in front.
    passage_ids: P ids, '' where there is none.
    names: P strings to display, or ''.
    negatives: texts, each with its title in front, less the false ones.
    query_id: '' if there is none.
    weight: of each of its pairs in the loss.
    false_negatives: how many of the negatives were one of the passages, equal
      but for whitespace around them.
  """

  query: str
  passages: Sequence[str]
  passage_ids: Sequence[str]
  names: Sequence[str]
  negatives: Sequence[str]
  query_id: str
  weight: float
  false_negatives: int


@dataclasses.dataclass(frozen=True)
class PairColumns:
  """What the columns of a file of pairs are called.

  `passage` holds a string or a list of strings, all of them passages of the
  query; a title, passage_id or name belongs to the one passage, or is a list as
  long. Hard negatives are in the column called `negatives` and in those called
  `negatives_1`, `negatives_2`, ..., each a list of strings, one string, or
  nothing.

  A row is bad when it has no query or passage, any of its texts is nothing but
  whitespace, or a column holds something else than it should.

  Attributes:
    query: name of the column of queries.
    passage: name of the column of passages.
    negatives: name of the column of hard negatives. This one and those below
      may be missing in a file, unless called otherwise than by default; None
      leaves the column out.
    title: name of the column of titles, joined in front of a passage with a
      space.
    negative_titles: name of the column of the hard negatives' titles, which
      goes with `negatives` entry by entry. Without it hard negatives are taken
      to have their titles in their texts.
    query_id: name of the column of the queries' ids, strings or integers.
    passage_id: name of the column of the passages' ids, the same.
    name: name of the column of what a search hit displays.
    weight: name of the column of the weights of the row's pairs in the loss,
      finite numbers from 0 on, which training alone reads.
  """

  query: str = 'query'
  passage: str = 'passage'
  negatives: str | None = 'negatives'
  title: str | None = None
  negative_titles: str | None = None
  query_id: str | None = 'query_id'
  passage_id: str | None = 'passage_id'
  name: str | None = 'name'
  weight: str | None = None

  def required(self) -> dict[str, str]:
    """Names of the columns that a file must have, by attribute."""
    return {
        field.name: getattr(self, field.name)
        for field in dataclasses.fields(PairColumns)
        if field.name in ('query', 'passage')
        or getattr(self, field.name) not in (None, field.default)
    }

  def wants(self, column: str) -> bool:
    """Whether a file's column of this name is read."""
    return any(
        self.find([column], field.name)
        for field in dataclasses.fields(PairColumns)
    )

  def find(self, columns: Iterable[str], attribute: str) -> list[str]:
    """Those of a file's columns that are meant by an attribute."""
    name = getattr(self, attribute)
    if name is not None and attribute in ('negatives', 'negative_titles'):
      return _numbered(columns, name)
    return [name] if name in columns else []

  def read(self, row: Mapping[str, Any]) -> PairRow:
    """Checks a row, values by column; raises BadRow."""
    for attribute in ('query', 'passage'):
      if getattr(self, attribute) not in row:
        raise BadRow(
            f'column {getattr(self, attribute)!r} is missing among'
            f' {str(list(row))[:200]} ({flag(attribute)} gives its name)'
        )
    query = rows.text(row, self.query)
    texts = _texts(row, self.passage)
    if not texts:
      raise BadRow(f'{self.passage!r} is an empty list')
    count = len(texts)
    passages = _titled(row, texts, self.title)
    negatives = self._negatives(row)
    false = 0
    if negatives:
      # Without titles of their own, negatives compare with the bare texts.
      positives = {
          text.strip()
          for text in (*passages, *(() if self.negative_titles else texts))
      }
      kept = [text for text in negatives if text.strip() not in positives]
      false = len(negatives) - len(kept)
      negatives = kept
    return PairRow(
        query=query,
        passages=passages,
        passage_ids=_parallel(row, self.passage_id, count),
        names=_parallel(row, self.name, count),
        negatives=negatives,
        query_id=rows.identifier(row, self.query_id),
        weight=1.0 if self.weight is None else rows.weight(row, self.weight),
        false_negatives=false,
    )

  def _negatives(self, row: Mapping[str, Any]) -> list[str]:
    found = []
    for column in self.find(row, 'negatives'):
      if row[column] is None or row[column] == '':
        continue
      titles = None
      if self.negative_titles:
        titles = self.negative_titles + column.removeprefix(self.negatives)
      found += _titled(row, _texts(row, column), titles)
    return found


def flag(attribute: str) -> str:
  """What sets an attribute of PairColumns on the command line."""
  return f'--gin.{attribute.upper()}_COLUMN=...'


def _numbered(columns: Iterable[str], name: str) -> list[str]:
  """The columns that are called `name`, or `name`_ and a number."""
  prefix = f'{name}_'
  return [
      column
      for column in columns
      if column == name
      or (column.startswith(prefix) and column[len(prefix) :].isdecimal())
  ]


def _texts(row: Mapping[str, Any], column: str) -> Sequence[str]:
  """The texts of a column that holds one or a list of them."""
  value = row[column]
  texts = value if isinstance(value, list) else [value]
  for text in texts:
    rows.check_text(column, text)
  return texts


def _titled(
    row: Mapping[str, Any], texts: Sequence[str], column: str | None
) -> Sequence[str]:
  """The texts with the titles of a column in front of them."""
  if column is None:
    return texts
  return [
      f'{title} {text}' if title.strip() else text
      for title, text in zip(_parallel(row, column, len(texts)), texts)
  ]


def _parallel(
    row: Mapping[str, Any], column: str | None, count: int
) -> Sequence[str]:
  """The `count` values of a column that goes with texts, '' for none."""
  value = row.get(column)
  if value is None:
    return [''] * count
  values = value if isinstance(value, list) else [value]
  if len(values) != count:
    raise BadRow(f'{column!r} holds {len(values)} values for {count} texts')
  return [rows.as_identifier(column, value) for value in values]
