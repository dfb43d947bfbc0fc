"""The columns of an example: one line each, for every part that handles them.

The token cache keeps them. Columns of queries or candidates are gathered into
batches, where losses read them as `Embeddings.columns[name]`.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math
from typing import Any

import numpy as np

from dualenc_jax.utils.errors import expect, UserError

TEXT = 'text'
# Names of the texts of a batch; `batch_arrays` has the others.
ROWS = ('queries', 'passages', 'pairs')
# Names of the vectors of a teacher in a batch, by the side of their texts.
TEACHER_VECTORS = {
    'queries': 'teacher_queries', 'passages': 'teacher_passages'
}
# The train step adds it: optimizer steps taken so far, int32 [].
STEP = 'step'


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of examples.

  Attributes:
    name: key in an example, and in batches and `Embeddings.columns`.
    dtype: 'text', or a NumPy dtype of numbers.
    rank: 0 for a value an example, 1 for a list of any length.
    default: the value where an example gives none; per candidate, the value of
      each of them, and of a hard negative that a batch lacks.
    per: 'query' for a number an example, gathered into batches as [B];
      'candidate' for a list of numbers, the passage's and then one for each
      hard negative, gathered as [B, 1 + K] with the same choice of hard
      negatives as the passages themselves; None for a column not in batches.
    stored: name of its values in the cache, `name` if None; with a `tower` the
      names of several arrays begin with it.
    tower: 'query' or 'passage' of texts that are encoded, else None.
    hashed: the column whose hash stands in for an empty id.
  """

  name: str
  dtype: str = 'float32'
  rank: int = 0
  default: Any = math.nan
  per: str | None = None
  stored: str | None = None
  tower: str | None = None
  hashed: str | None = None

  def __post_init__(self):
    expect(
        self.per in (None, 'query', 'candidate'),
        f'Column.per of {self.name!r}', self.per, "'query', 'candidate' or None"
    )
    if self.per and (
        self.dtype == TEXT or self.rank != (self.per == 'candidate')
    ):
      raise UserError(
          f'The column {self.name!r} per {self.per} is {self.dtype} of rank'
          f' {self.rank}; expected numbers, rank 0 per query, 1 per candidate.'
      )

  @property
  def key(self) -> str:
    """The name of the column in the cache."""
    return self.stored or self.name

  @property
  def form(self) -> str:
    """A description of its values, part of the key of caches."""
    return (
        f'{self.dtype} {self.rank} {self.per} {self.default!r}'
        f' {self.tower or ""} {self.hashed or ""}'
    ).rstrip()

  def shape(self, batch_size: int, num_negatives: int) -> tuple[int, ...]:
    """The shape of its values in a batch of B pairs, K hard negatives each."""
    candidates = (1 + num_negatives,) if self.per == 'candidate' else ()
    return (batch_size, *candidates)


# Columns of every example.
STANDARD = (
    Column('query', TEXT, default='', stored='query', tower='query'),
    Column('passage', TEXT, default='', stored='passage', tower='passage'),
    Column('negatives', TEXT, 1, (), stored='negative', tower='passage'),
    Column('query_id', TEXT, default='', stored='query_ids', hashed='query'),
    Column('passage_id', TEXT, 0, '', stored='passage_ids', hashed='passage'),
    Column('name', TEXT, default='', stored='names'),
    Column('location', TEXT, default='', stored='locations'),
    Column('relevance', 'int32', default=1, stored='relevances'),
    Column('answers', TEXT, 1, ()),
)
# Columns that a dataset may name among its `extra_columns`.
WEIGHTS = Column('weights', default=1.0, per='query')
# A teacher's scores of the passage and of its hard negatives, NaN for none.
TEACHER_SCORES = Column('teacher_scores', rank=1, per='candidate')
OPTIONAL = (WEIGHTS, TEACHER_SCORES)

_DEFAULTS = {column.name: column.default for column in STANDARD}
_LISTS = [column.name for column in STANDARD if column.rank]


def collect_extra(datasets: Iterable[Any]) -> tuple[Column, ...]:
  """The extra columns of some datasets, which a batch of all of them has.

  Raises:
    UserError: two columns of one name, or one of a name that is in use.
  """
  by_name: dict[str, Column] = {}
  used = [*_DEFAULTS, *(c.key for c in STANDARD), *batch_arrays(1, 1, (), 1)]
  for dataset in datasets:
    for column in dataset.extra_columns:
      other = by_name.setdefault(column.name, column)
      taken = *used, *ROWS, *TEACHER_VECTORS.values(), STEP
      if column.name in taken or column.form != other.form:
        raise UserError(
            f'extra_columns of {type(dataset).__name__}: the name'
            f' {column.name!r} is in use. Expected a name of its own.'
        )
  return tuple(by_name.values())


def cached_columns(dataset: Any, split: str) -> tuple[Column, ...]:
  """The columns that the token cache of a split keeps: extra ones of train."""
  return (*STANDARD, *(collect_extra([dataset]) if split == 'train' else ()))


def batch_arrays(
    batch_size: int, num_negatives: int | None, columns: Iterable[Column] = (),
    num_positives: int = 0,
) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Shape and dtype of the arrays of a batch, except the rows of its texts.

  `num_negatives` is K, None without hard negatives; `num_positives` P, the
  other passages of a query.
  """
  b, k = batch_size, num_negatives
  arrays: dict[str, tuple[tuple[int, ...], Any]] = {
      'numbers': ((b,), np.uint32),
      'query_ids': ((b, 2), np.uint32),
      'passage_ids': ((b, 2), np.uint32),
  }
  if k is not None:
    arrays['negative_ids'] = ((b, k, 2), np.uint32)
    arrays['negative_valid'] = ((b, k), np.bool_)
  if num_positives:
    arrays['positive_ids'] = ((b, num_positives, 2), np.uint32)
  for column in columns:
    arrays[column.name] = column.shape(b, k or 0), np.dtype(column.dtype)
  return arrays


def example(
    values: Mapping[str, Any], more: Iterable[Column] = OPTIONAL
) -> dict[str, Any]:
  """Completes the values of an example with defaults of standard columns.

  Raises:
    TypeError: a value belongs to no column, standard or extra.
  """
  row = {**_DEFAULTS, **values}
  for name in _LISTS:
    row[name] = list(row[name])
  if len(row) > len(_DEFAULTS):
    known = [*_DEFAULTS, *(column.name for column in more)]
    unknown = [name for name in row if name not in known]
    if unknown:
      raise TypeError(f'{unknown[0]!r} is not a column, as {known} are')
  return row
