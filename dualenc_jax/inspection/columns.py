"""Columns of millions of rows, a few bytes a row, and which rows are equal."""

import array
from collections.abc import Callable, Sequence

import numpy as np

from dualenc_jax.readers.bad_rows import Found, SHOWN

NONE = 0


def hashes(texts: Sequence[str]) -> np.ndarray:
  """64 bits of each text: int64 [n], `NONE` for ''.

  They hold in this process only, for Python keys its hash anew in every one.
  """
  return np.fromiter(map(hash, texts), np.int64, len(texts))


def pair_hashes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """64 bits of each pair of hashes: int64 [n]."""
  # Odd, so that no bit of the first is lost; the sum wraps around.
  return first * np.int64(0x1E3779B97F4A7C15) + second


class Column:
  """Appends arrays of one dtype."""

  def __init__(self, dtype):
    self._parts = [np.zeros(0, dtype)]

  def append(self, values: np.ndarray) -> None:
    self._parts.append(values.astype(self._parts[0].dtype, copy=False))

  @property
  def values(self) -> np.ndarray:
    """All values [n]."""
    self._parts = [np.concatenate(self._parts)]
    return self._parts[0]


class Places:
  """Where rows are from, 'file:line', four bytes a row."""

  def __init__(self):
    self._lines = array.array('i')
    self._files, self._starts = [], []

  def append(self, location: str) -> None:
    """Adds the place of the next row: 'file:line', or anything else."""
    file, _, line = location.rpartition(':')
    if not line.isdecimal() or len(line) > 9:
      file, line = location, 0
    if not self._files or file != self._files[-1]:
      self._files.append(file)
      self._starts.append(len(self._lines))
    self._lines.append(int(line))

  def __len__(self) -> int:
    return len(self._lines)

  def __getitem__(self, row: int) -> str:
    file = self._files[int(np.searchsorted(self._starts, row, 'right')) - 1]
    line = self._lines[row]
    if line:
      return f'{file}:{line}'
    return file or f'row {row + 1}'


def found(rows: np.ndarray, place: Callable[[int], str]) -> Found:
  """These rows, in ascending order."""
  return Found(len(rows), [place(int(row)) for row in rows[:SHOWN]])


def found_again(
    rows: np.ndarray, firsts: np.ndarray, place: Callable[[int], str]
) -> Found:
  """These rows, in ascending order, each told with another one."""
  return Found(
      len(rows),
      [
          both(place(int(row)), place(int(first)))
          for row, first in zip(rows[:SHOWN], firsts)
      ],
  )


def both(place: str, other: str) -> str:
  """Two places; of one file, its name is told once."""
  file = place.rpartition(':')[0]
  if file and other.startswith(f'{file}:'):
    other = other.removeprefix(f'{file}:')
  return f'{place} and {other}'


def first_rows(keys: np.ndarray) -> np.ndarray:
  """The first row with the same key, for every row: int32 [n]."""
  order = np.argsort(keys, kind='stable').astype(np.int32)
  ordered = keys[order]
  starts = np.ones(len(keys), bool)
  starts[1:] = ordered[1:] != ordered[:-1]
  firsts = np.empty(len(keys), np.int32)
  firsts[order] = order[starts][np.cumsum(starts) - 1]
  return firsts


def contradictions(
    keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Keys that have several values.

  Returns:
    (rows, firsts), a row each for every such key: the first that has another
    value than the first row of the key, and that one. Rows without key or value
    do not count.
  """
  given = np.flatnonzero((keys != NONE) & (values != NONE))
  firsts = given[first_rows(keys[given])]
  other = values[given] != values[firsts]
  firsts, index = np.unique(firsts[other], return_index=True)
  rows = given[other][index]
  order = np.argsort(rows)
  return rows[order], firsts[order]


def members(values: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Which values are something, and among the others: bool [n]."""
  return np.isin(values, others, kind='sort') & (values != NONE)
