"""The passages of a split in a fixed order, to rank or to index."""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.text.ragged import fingerprints, Ragged
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class TextColumn(Sequence[str]):
  """Some rows of a column of texts, decoded on access."""

  column: Ragged
  rows: np.ndarray

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self.column.text(row) for row in self.rows[index]]
    return self.column.text(self.rows[index])

  def __len__(self) -> int:
    return len(self.rows)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Passages, rows int64 [N] of a cache; no text is kept in memory."""

  cache: Cache
  rows: np.ndarray

  @classmethod
  def from_cache(cls, cache: Cache) -> 'Corpus':
    """The passages of a split, of pairs or of passages alone.

    Raises:
      UserError: no passages, or an id that stands for two of them.
    """
    if cache.query_texts.lengths.any():
      return cls.from_pairs(cache)[0]
    return cls.from_passages(cache)

  @classmethod
  def from_passages(cls, cache: Cache) -> 'Corpus':
    """Every row as a passage with its id; two may have equal texts."""
    return cls._checked(cache, np.arange(len(cache)))

  @classmethod
  def from_pairs(cls, cache: Cache) -> tuple['Corpus', np.ndarray]:
    """The passages of pairs; equal texts are one passage.

    Returns:
      The corpus, and the passage of every row of the cache, int64 [rows], -1
      for none.
    """
    with_passage = np.flatnonzero(cache.passage_texts.lengths)
    if not len(with_passage):
      raise UserError(
          f'{describe(cache)} has only queries; expected passages, its own or'
          ' those of a corpus split.'
      )
    # By text, not by tokens, which are cut at the length of the tower.
    texts = fingerprints(cache.passage_texts)[with_passage]
    first, passages = first_rows(texts)
    of_row = np.full(len(cache), -1)
    of_row[with_passage] = passages
    return cls._checked(cache, with_passage[first]), of_row

  @property
  def ids(self) -> TextColumn:
    """N different ids."""
    return TextColumn(self.cache.passage_ids, self.rows)

  @property
  def texts(self) -> TextColumn:
    return TextColumn(self.cache.passage_texts, self.rows)

  def subset(self, indices: np.ndarray) -> 'Corpus':
    """The passages that `indices` [n] number, in this order."""
    return Corpus(self.cache, self.rows[indices])

  def find(self, ids: Sequence[str]) -> np.ndarray:
    """The numbers of the passages with n ids: int64 [n], -1 for none."""
    prints, order = self._by_id
    wanted = fingerprints(Ragged.from_texts(ids))
    at = np.minimum(np.searchsorted(prints, wanted), len(prints) - 1)
    return np.where(prints[at] == wanted, order[at], -1)

  @functools.cached_property
  def _by_id(self) -> tuple[np.ndarray, np.ndarray]:
    """Fingerprints of the ids, ascending, and whose they are."""
    prints = fingerprints(self.cache.passage_ids)[self.rows]
    order = np.argsort(prints)
    return prints[order], order

  def name(self, index: int) -> str:
    """The name that a search hit displays for a passage, or ''."""
    return self.cache.names.text(self.rows[index])

  def __len__(self) -> int:
    return len(self.rows)

  @classmethod
  def _checked(cls, cache: Cache, rows: np.ndarray) -> 'Corpus':
    check_unique('passage_id', cache.passage_ids, rows, cache)
    return cls(cache, rows)


def describe(cache: Cache) -> str:
  """The source of a cache, as 'Task x, split y,'."""
  return f"Task {cache.header['task']!r}, split {cache.header['split']!r},"


def first_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Distinct values in order of appearance, and the number of each row's."""
  _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
  order = np.argsort(first)
  rank = np.empty_like(order)
  rank[order] = np.arange(len(order))
  return first[order], rank[inverse]


def queries_by_id(
    cache: Cache, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """A row for each query, by its id, and the query of each of `rows`.

  Raises:
    UserError: an id that stands for two texts.
  """
  first, query_of = first_rows(fingerprints(cache.query_ids)[rows])
  texts = fingerprints(cache.query_texts)[rows]
  other = np.flatnonzero(texts != texts[first][query_of])
  if len(other):
    places = rows[first[query_of[other[0]]]], rows[other[0]]
    raise duplicate_error('query_id', cache.query_ids, places, cache)
  return rows[first], query_of


def check_unique(
    name: str, ids: Ragged, rows: np.ndarray, cache: Cache
) -> None:
  """Raises UserError if two of `rows` have the same id."""
  prints = fingerprints(ids)[rows]
  different, counts = np.unique(prints, return_counts=True)
  if len(different) < len(rows):
    same = rows[np.flatnonzero(prints == different[counts > 1][0])]
    raise duplicate_error(name, ids, same, cache)


def duplicate_error(
    name: str, ids: Ragged, rows: Sequence[int] | np.ndarray, cache: Cache
) -> UserError:
  """The error of an id of two different texts, those of the first two rows."""
  places = [cache.locations.text(row) for row in rows[:2]]
  where = f' ({" and ".join(places)})' * all(places)
  return UserError(
      f'{describe(cache)} has a {name} {ids.text(rows[0])!r} that names two'
      f' rows or two different texts{where}. Expected one text an id: mend the'
      ' file, or leave the ids out.'
  )
