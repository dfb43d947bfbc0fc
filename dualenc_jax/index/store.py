"""Rows of embeddings that lie in several shards, read as one array."""

from collections.abc import Sequence

import numpy as np


class RowStore:
  """N rows over arrays that are memory-mapped, or in memory; read-only.

  `store[a:b]` is a view where the rows lie in one shard, else a copy;
  `store[rows]` gathers any rows in any order, reading each shard once, in the
  order of the disk; `store[i]` is one row. `np.asarray(store)` copies all.

  Attributes:
    shape: (N, D).
    dtype: of the rows.
  """

  ndim = 2

  def __init__(self, shards: Sequence[np.ndarray]):
    """Takes one array or more, [rows, D] each, of one dtype."""
    self._shards = shards
    self._starts = np.cumsum([0, *map(len, shards)])
    self.shape = int(self._starts[-1]), shards[0].shape[1]
    self.dtype = shards[0].dtype

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: int | slice | np.ndarray) -> np.ndarray:
    if isinstance(rows, slice):
      start, stop, step = rows.indices(len(self))
      if step == 1:
        return self._slice(start, max(start, stop))
      rows = np.arange(start, stop, step)
    rows = np.asarray(rows)
    if not rows.size:
      rows = rows.astype(np.int64)
    if rows.dtype.kind not in 'iu':
      raise IndexError(
          f'rows are {rows.dtype}: expected whole numbers or a slice.'
      )
    flat = rows.ravel().astype(np.int64)
    outside = (flat < -len(self)) | (flat >= len(self))
    if outside.any():
      raise IndexError(
          f'row {flat[outside][0]}: expected 0 to {len(self) - 1}.'
      )
    gathered = self._gather(np.where(flat < 0, flat + len(self), flat))
    return gathered.reshape(*rows.shape, self.shape[1])

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    if copy is False and len(self._shards) > 1:
      raise ValueError('rows of several shards are one array as a copy only')
    return np.array(self[:], dtype, copy=copy)

  def _slice(self, start: int, stop: int) -> np.ndarray:
    shard = max(int(np.searchsorted(self._starts, start, 'right')) - 1, 0)
    shard = min(shard, len(self._shards) - 1)
    parts = []
    while True:
      first = int(self._starts[shard])
      parts.append(self._shards[shard][start - first : stop - first])
      start = int(self._starts[shard + 1])
      if start >= stop:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
      shard += 1

  def _gather(self, rows: np.ndarray) -> np.ndarray:
    order = np.argsort(rows, kind='stable')
    ascending = rows[order]
    out = np.empty((len(rows), self.shape[1]), self.dtype)
    ends = np.searchsorted(ascending, self._starts)
    for shard, first, begin, end in zip(
        self._shards, self._starts, ends, ends[1:]
    ):
      if begin < end:
        out[order[begin:end]] = shard[ascending[begin:end] - first]
    return out
