"""Texts and ids of collections that are too large for a dictionary."""

from collections.abc import Iterable
import sqlite3

import numpy as np


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

  def __contains__(self, name: str) -> bool:
    key = np.int64(hash(name))
    position = int(self._keys.searchsorted(key))
    return position < len(self._keys) and bool(self._keys[position] == key)
