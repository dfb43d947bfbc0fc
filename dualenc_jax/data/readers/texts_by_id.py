"""Texts and ids of collections that are too large for a dictionary."""

import array
from collections.abc import Callable, Iterable, Iterator
import logging
import sqlite3
from typing import NamedTuple

import numpy as np

from dualenc_jax.data.readers.rows import collected, LENIENT
from dualenc_jax.utils.errors import UserError


class Row(NamedTuple):
  """A query or a passage at a location, 'file:line'; its name is the title."""

  location: str
  id: str
  text: str
  name: str = ''


class TextTable:
  """Texts by id in a database of its own on disk; of an id the first counts.

  A context manager: the database goes with it.
  """

  def __init__(self, texts: Iterable[tuple[str, str]]):
    """Reads all (id, text)."""
    # TensorFlow reads one generator in several threads, one after the other.
    self._texts = sqlite3.connect('', check_same_thread=False)
    self._texts.execute('CREATE TABLE texts (id TEXT, text TEXT)')
    self._texts.executemany('INSERT INTO texts VALUES (?, ?)', texts)
    # Sorted once, not with each row.
    self._texts.execute('CREATE INDEX by_id ON texts (id)')

  def __len__(self) -> int:
    found = self._texts.execute('SELECT COUNT(DISTINCT id) FROM texts')
    return found.fetchone()[0]

  def __contains__(self, name: str) -> bool:
    return self.get(name) is not None

  def get(self, name: str) -> str | None:
    """The text of an id, None if there is no such id."""
    found = self._texts.execute(
        'SELECT text FROM texts WHERE id = ? ORDER BY rowid LIMIT 1', (name,)
    ).fetchone()
    return found and found[0]

  def __enter__(self) -> 'TextTable':
    return self

  def __exit__(self, *unused_error) -> None:
    self._texts.close()


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
    read: Callable[[], Iterable[Row]], strict: bool, flag: str = LENIENT
) -> Iterator[Row]:
  """Yields rows, and sees to it that no id comes twice.

  If strict, an id that does is a UserError after the last row, for 8 bytes of
  RAM a row; else the first row of an id is yielded and the log says how many
  others exist, for about 100 bytes a row. `flag` unsets strict.

  Args:
    read: begins to read the rows; called twice where an id occurs twice.
  """
  if not strict or collected() is not None:
    yield from _firsts(read())
    return
  hashes = array.array('q')
  for row in read():
    hashes.append(hash(row.id))
    yield row
  keys = np.frombuffer(hashes, np.int64)
  keys.sort()
  repeated = set(keys[1:][keys[1:] == keys[:-1]].tolist())
  seen: dict[str, Row] = {}
  for row in read() if repeated else ():
    if hash(row.id) not in repeated:
      continue
    first = seen.setdefault(row.id, row)
    if first is not row:
      instead = f', or keep only the first row of an id with {flag}'
      raise UserError(
          f'{row.location}: id {row.id!r} is also that of {first.location};'
          f' {len(repeated):,} ids in all occur more than once. Expected one'
          f' row per id. Mend the file{instead * bool(flag)}.'
      )


def _firsts(found: Iterable[Row]) -> Iterator[Row]:
  seen, count, first = set(), 0, None
  for row in found:
    if row.id not in seen:
      seen.add(row.id)
      yield row
    elif (bad := collected()) is not None:
      bad.add('the id of an earlier row', row.location)
    else:
      count += 1
      first = first or row
  if first:
    logging.getLogger(__name__).warning(
        'Skipped %d rows with ids of earlier rows, the first %r at %s.',
        count, first.id, first.location,
    )
