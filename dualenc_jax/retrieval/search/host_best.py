"""The best scores of each query on CPUs: XLA scores, and NumPy keeps the best.

XLA sorts on one core, and its product is fastest with all queries and few rows
of the corpus, which makes many blocks to merge. So NumPy takes the scores above
the worst kept so far, next to none after a few blocks, while XLA computes the
next block.

Shapes as in `search_programs`; G groups of neighbours among M rows.
"""

import collections
from typing import NamedTuple

import jax
import numpy as np

from dualenc_jax.retrieval.search.ranking import sort_keys

# Queries that are looked at together: so few that their scores stay in a cache,
# so many that Python's own time does not count.
_TOGETHER = 64


class Scores(NamedTuple):
  """Scores of a block, float32 [n, Q, M]; the greatest of groups [n, Q, G]."""

  values: jax.Array
  greatest: jax.Array


class HostBest:
  """The best of each query so far, and blocks that are not merged yet.

  Attributes:
    above: int32 [n, Q], as of `search_programs.Best`.
  """

  def __init__(self, queries: int, count: int, above: jax.Array):
    """Keeps `count` of each query."""
    self.above = above
    self._waiting: collections.deque[tuple[Scores, int]] = collections.deque()
    self._parts = [
        _PartBest(min(_TOGETHER, queries - first), count)
        for first in range(0, queries, _TOGETHER)
    ]

  def add(self, scores: Scores, start: int) -> None:
    """Takes scores of rows from `start` on, which may still be computed."""
    self._waiting.append((scores, int(start)))

  def merge_oldest(self) -> None:
    """Waits for the oldest scores added, and merges them."""
    scores, start = self._waiting.popleft()
    for values, greatest in zip(*map(_shards, scores)):
      for i, part in enumerate(self._parts):
        queries = slice(i * _TOGETHER, (i + 1) * _TOGETHER)
        part.add(values[queries], greatest[queries], start)
      start += values.shape[1]

  def finish(self) -> tuple[np.ndarray, np.ndarray]:
    """Values and rows [Q, C] of all scores added, best first."""
    while self._waiting:
      self.merge_oldest()
    parts = (part.merge() for part in self._parts)
    values, rows = map(np.concatenate, zip(*parts))
    order = np.argsort(-values, axis=1)
    return (
        np.take_along_axis(values, order, axis=1),
        np.take_along_axis(rows, order, axis=1),
    )


class _PartBest:
  """The best of a few queries, in no order."""

  def __init__(self, queries: int, count: int):
    self._values = np.full((queries, count), -np.inf, np.float32)
    self._rows = np.full((queries, count), -1, np.int32)
    self._limits = np.full((queries, 1), -np.inf, np.float32)
    # Not merged yet: the query, value and row of each, and how many a query.
    self._better: list[tuple[np.ndarray, ...]] = []
    self._filled = np.zeros(queries, np.int64)

  def add(self, values: np.ndarray, greatest: np.ndarray, first: int) -> None:
    """Takes scores [Q, M] of rows from `first` on; greatest is [Q, G]."""
    queries, groups = greatest.shape
    count = self._values.shape[1]
    if count <= groups and self._limits[0, 0] == -np.inf:
      # At least so good are the best of all, as each group has one.
      last = groups - count
      least = np.partition(greatest, last, axis=1)[:, last, None]
      self._limits = np.nextafter(least, np.float32(-np.inf))
    query, group = np.nonzero(greatest > self._limits)
    members = values.reshape(queries, groups, -1)[query, group]
    which, place = np.nonzero(members > self._limits[query])
    if not len(which):
      return
    query = query[which]
    rows = first + group[which] * members.shape[1] + place
    # NumPy sorts small integers in linear time.
    query = query.astype(np.uint8)
    self._better.append((query, members[which, place], rows))
    self._filled += np.bincount(query, minlength=queries)
    if self._filled.max() > count:
      self.merge()

  def merge(self) -> tuple[np.ndarray, np.ndarray]:
    """Values and rows [Q, C] of all that was added."""
    if not self._better:
      return self._values, self._rows
    query, *better = map(np.concatenate, zip(*self._better))
    order = np.argsort(query, kind='stable')
    query = query[order]
    starts = np.cumsum(self._filled) - self._filled
    place = np.arange(len(query)) - starts[query]
    shape = len(self._values), self._filled.max()
    count = self._values.shape[1]
    values = np.full(shape, -np.inf, np.float32)
    rows = np.full(shape, -1, np.int32)
    values[query, place], rows[query, place] = (x[order] for x in better)
    values = np.concatenate([self._values, values], axis=1)
    rows = np.concatenate([self._rows, rows], axis=1)
    # With their places none are equal: of many that are, as where there is
    # none, NumPy is slow to find the best.
    order = sort_keys(values, np.arange(values.shape[1]))
    best = np.partition(order, -count, axis=1)[:, -count:] & 0xFFFFFFFF
    self._values = np.take_along_axis(values, best, axis=1)
    self._rows = np.take_along_axis(rows, best, axis=1)
    least = self._values.min(axis=1, keepdims=True)
    self._limits = np.maximum(self._limits, least)
    self._better.clear()
    self._filled[:] = 0
    return self._values, self._rows


def _shards(x: jax.Array) -> list[np.ndarray]:
  """The shard of each device, in the order of rows, without copies."""
  shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
  return [np.asarray(shard.data)[0] for shard in shards]
