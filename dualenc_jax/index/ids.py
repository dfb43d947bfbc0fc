"""The ids of an index, found in its files when they are asked for."""

from collections.abc import Iterator, Sequence
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.index.header import AGAIN, Header
from dualenc_jax.index.shard import IDS, Shard

_NEWLINE = 10


class Ids(Sequence[str]):
  """N ids in the order of the rows, in no list: 8 bytes of memory each."""

  def __init__(self, header: Header, shards: Sequence[Shard]):
    self._header = header
    self._shards = shards
    self._ends: dict[int, np.ndarray] = {}

  def __len__(self) -> int:
    return self._header.passages

  def __getitem__(self, row: int | slice) -> str | list[str]:
    if isinstance(row, slice):
      return [self[i] for i in range(*row.indices(len(self)))]
    if not -len(self) <= row < len(self):
      raise IndexError(f'row {row}: expected 0 to {len(self) - 1}.')
    shard, row = divmod(int(row) % len(self), self._header.shard_size)
    ends = self._lines(shard)
    start = ends[row - 1] + 1 if row else 0
    return _decode(self._shards[shard].ids[start : ends[row]])

  def __iter__(self) -> Iterator[str]:
    for number, shard in enumerate(self._shards):
      self._lines(number)
      yield from _decode(shard.ids[:-1]).split('\n')

  def _lines(self, shard: int) -> np.ndarray:
    """Where the lines of a shard's ids.txt end, int64 [rows]."""
    if shard not in self._ends:
      found = self._shards[shard]
      ends = np.flatnonzero(found.ids == _NEWLINE)
      rows = len(self._header.rows_of(shard))
      if len(ends) != rows or ends[-1] != len(found.ids) - 1:
        _refuse(found.folder / IDS, len(ends), rows)
      self._ends[shard] = ends
    return self._ends[shard]


def _decode(line: np.ndarray) -> str:
  return line.tobytes().decode('utf-8', 'surrogatepass')


def _refuse(path: pathlib.Path, lines: int, rows: int) -> None:
  raise UserError(
      f'{path}: has {lines} whole lines: expected {rows}, an id a line. {AGAIN}'
  )
