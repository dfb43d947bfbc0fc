"""Texts by id, for collections that are too large for a dictionary."""

from collections.abc import Iterable
import sqlite3


class TextTable:
  """Texts by id in a database of its own on disk; of an id the first counts.

  A context manager: the database goes with it.
  """

  def __init__(self, rows: Iterable[tuple[str, str]]):
    """Reads all (id, text)."""
    # TensorFlow reads one generator in several threads, one after the other.
    self._texts = sqlite3.connect('', check_same_thread=False)
    self._texts.execute('CREATE TABLE texts (id TEXT, text TEXT)')
    self._texts.executemany('INSERT INTO texts VALUES (?, ?)', rows)
    # Sorted once, not with each row.
    self._texts.execute('CREATE INDEX by_id ON texts (id)')

  def __len__(self) -> int:
    (count,) = self._texts.execute(
        'SELECT COUNT(DISTINCT id) FROM texts'
    ).fetchone()
    return count

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
