"""Texts by id, for collections that are too large for a dictionary."""

import array
from collections.abc import Iterable
import hashlib
import tempfile

import numpy as np

from dualenc_jax.errors import UserError

_FLUSH = 2**24  # Bytes of text that are held before they are written.


class TextTable:
  """Texts by id, the texts in an unnamed temporary file, 16 bytes each in RAM.

  Ids are known by 64 bits of their hash. A context manager: the file goes with
  it.
  """

  def __init__(self, rows: Iterable[tuple[str, str]], what: str):
    """Reads all rows.

    Args:
      rows: (id, text).
      what: they are and where they are from, for the error.

    Raises:
      UserError: an id occurs twice.
    """
    self._file = tempfile.TemporaryFile()
    # Not lists, which take five times the memory.
    keys, ends = array.array('Q'), array.array('q', [0])
    buffer, held = [], 0
    for name, text in rows:
      data = text.encode('utf-8')
      keys.append(_key(name))
      ends.append(ends[-1] + len(data))
      buffer.append(data)
      held += len(data)
      if held > _FLUSH:
        self._file.write(b''.join(buffer))
        buffer, held = [], 0
    self._file.write(b''.join(buffer))
    self._file.flush()
    keys = np.frombuffer(keys, np.uint64)
    self._order = np.argsort(keys, kind='stable')
    self._keys = keys[self._order]
    self._ends = np.frombuffer(ends, np.int64)
    repeated = np.flatnonzero(self._keys[1:] == self._keys[:-1])
    if len(repeated):
      raise UserError(
          f'{what}: {len(repeated):,} ids occur twice, the first in rows'
          f' {self._order[repeated[0]] + 1} and'
          f' {self._order[repeated[0] + 1] + 1}. Expected one row an id.'
      )

  def __len__(self) -> int:
    return len(self._keys)

  def __contains__(self, name: str) -> bool:
    return self._row(name) is not None

  def get(self, name: str) -> str | None:
    """The text of an id, None if there is no such id."""
    row = self._row(name)
    if row is None:
      return None
    start, end = self._ends[row], self._ends[row + 1]
    self._file.seek(start)
    return self._file.read(end - start).decode('utf-8')

  def __enter__(self) -> 'TextTable':
    return self

  def __exit__(self, *unused_error) -> None:
    self._file.close()

  def _row(self, name: str) -> int | None:
    key = np.uint64(_key(name))
    position = int(np.searchsorted(self._keys, key))
    if position == len(self._keys) or self._keys[position] != key:
      return None
    return int(self._order[position])


def _key(name: str) -> int:
  digest = hashlib.blake2b(name.encode('utf-8'), digest_size=8).digest()
  return int.from_bytes(digest, 'little')
