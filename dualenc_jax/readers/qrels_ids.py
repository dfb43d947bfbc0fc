"""Ids of collections of millions: sets of them, and each only once."""

import array
from collections.abc import Callable, Iterable, Iterator
import logging
from typing import NamedTuple

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows
from dualenc_jax.readers.rows import LENIENT


class Row(NamedTuple):
  """A query or a passage as its file has it.

  Attributes:
    location: 'file:line'.
    id: unique among queries, or among passages.
    text: with the title in front.
    name: what a search hit displays, or ''.
  """

  location: str
  id: str
  text: str
  name: str = ''


class IdSet:
  """A set of ids, known by 64 bits of their hash: 8 bytes of RAM each."""

  def __init__(self, ids: Iterable[str]):
    self._keys = np.unique(np.fromiter(map(hash, ids), np.int64))

  def __len__(self) -> int:
    return len(self._keys)

  def __contains__(self, name: str) -> bool:
    key = np.int64(hash(name))
    position = int(self._keys.searchsorted(key))
    return position < len(self._keys) and bool(self._keys[position] == key)


def unique(
    read: Callable[[], Iterable[Row]],
    strict: bool,
    flag: str = LENIENT,
) -> Iterator[Row]:
  """Yields rows, and sees to it that no id comes twice.

  Args:
    read: begins to read the rows; called twice where an id occurs twice.
    strict: whether an id that occurs twice is an error after the last row, for
      8 bytes of RAM a row; else the first row of an id is yielded and the log
      says how many others exist, for about 100 bytes a row. Of no effect
      within `bad_rows.collecting`.
    flag: what unsets it, for the message.

  Raises:
    UserError: an id occurs twice; names both rows.
  """
  if not strict or bad_rows.collected() is not None:
    yield from _firsts(read())
    return
  keys = array.array('q')
  for row in read():
    keys.append(hash(row.id))
    yield row
  keys = np.frombuffer(keys, np.int64)
  keys.sort()
  repeated = set(keys[1:][keys[1:] == keys[:-1]].tolist())
  if repeated:
    again = (r for r in read() if hash(r.id) in repeated)
    _raise_first(again, len(repeated), flag)


def _firsts(rows: Iterable[Row]) -> Iterator[Row]:
  seen, repeats, first = set(), 0, None
  collected = bad_rows.collected()
  for row in rows:
    if row.id not in seen:
      seen.add(row.id)
      yield row
    elif collected is not None:
      collected.add('the id of a row before', row.location)
    else:
      repeats += 1
      first = first or row
  if first:
    logging.getLogger(__name__).warning(
        'Skipped %d rows of ids that came before, the first %r at %s.',
        repeats,
        first.id,
        first.location,
    )


def _raise_first(rows: Iterable[Row], count: int, flag: str) -> None:
  seen = {}
  for row in rows:
    first = seen.setdefault(row.id, row)
    if first is not row:
      raise UserError(
          f'{row.location}: id {row.id!r} is the one of {first.location}, too,'
          f' and {count:,} ids in all occur more than once. Expected one row an'
          ' id. Mend the file, or keep just the first row of an id with'
          f' {flag}.'
      )
