"""The best scores on CPUs: XLA scores, and NumPy on the host keeps the best.

XLA sorts on one core, and its product is fastest with all queries and few rows
of the corpus, which makes many blocks to merge. So NumPy takes the scores above
the worst kept so far, next to none after a few blocks, while XLA computes the
next block.

Shapes as in `search_programs`; G groups of neighbours among M rows.
"""

import collections
from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from dualenc_jax.retrieval.search.ranking import keys
from dualenc_jax.retrieval.search.search_programs import Near, Programs
from dualenc_jax.retrieval.search.top_k import maxima

# Queries that are looked at together: so few that their scores stay in a cache,
# so many that Python's own time does not count.
_TOGETHER = 64


class Scores(NamedTuple):
  """Scores of a block, float32 [n, Q, M]; the greatest of groups [n, Q, G]."""

  values: jax.Array
  greatest: jax.Array


class HostBest:
  """The best of each query so far, and scores not yet looked at."""

  def __init__(self, queries: int, count: int):
    """Keeps `count` of each query."""
    self._waiting: collections.deque[tuple[Scores, int]] = collections.deque()
    self._parts = [
        _Best(min(_TOGETHER, queries - first), count)
        for first in range(0, queries, _TOGETHER)
    ]

  def add(self, scores: Scores, start: int) -> None:
    """Takes scores, still computed, of rows from `start` on; `look` follows."""
    self._waiting.append((scores, int(start)))

  def look(self) -> None:
    """Waits for the oldest scores added and takes the best of them."""
    scores, start = self._waiting.popleft()
    for values, greatest in zip(*map(_of_devices, scores)):
      for i, part in enumerate(self._parts):
        queries = slice(i * _TOGETHER, (i + 1) * _TOGETHER)
        part.add(values[queries], greatest[queries], start)
      start += values.shape[1]

  def merged(self) -> tuple[np.ndarray, np.ndarray]:
    """Values and rows [Q, C] of all scores added, best first."""
    while self._waiting:
      self.look()
    parts = (part.merge() for part in self._parts)
    values, rows = map(np.concatenate, zip(*parts))
    order = np.argsort(-values, axis=1)
    return (
        np.take_along_axis(values, order, axis=1),
        np.take_along_axis(rows, order, axis=1),
    )


class _Best:
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
    found = query.astype(np.uint8), members[which, place], rows
    self._better.append(found)
    self._filled += np.bincount(query, minlength=queries)
    if self._filled.max() > count:
      self.merge()

  def merge(self) -> tuple[np.ndarray, np.ndarray]:
    """Values and rows [Q, C] of all that was added."""
    if not self._better:
      return self._values, self._rows
    query, *found = map(np.concatenate, zip(*self._better))
    order = np.argsort(query, kind='stable')
    query = query[order]
    starts = np.cumsum(self._filled) - self._filled
    place = np.arange(len(query)) - starts[query]
    shape = len(self._values), self._filled.max()
    count = self._values.shape[1]
    values = np.full(shape, -np.inf, np.float32)
    rows = np.full(shape, -1, np.int32)
    values[query, place], rows[query, place] = (x[order] for x in found)
    values = np.concatenate([self._values, values], axis=1)
    rows = np.concatenate([self._rows, rows], axis=1)
    # With their places none are equal: of many that are, as where there is
    # none, NumPy is slow to find the best.
    order = keys(values, np.arange(values.shape[1]))
    best = np.partition(order, -count, axis=1)[:, -count:] & 0xFFFFFFFF
    self._values = np.take_along_axis(values, best, axis=1)
    self._rows = np.take_along_axis(rows, best, axis=1)
    least = self._values.min(axis=1, keepdims=True)
    self._limits = np.maximum(self._limits, least)
    self._better.clear()
    self._filled[:] = 0
    return self._values, self._rows


class HostPrograms(Programs):
  """`Programs` on CPUs of this process, with a `HostBest` for `Best`."""

  # A product of a thousand queries has 100 GFLOP/s a core with these, 88 with
  # twice as many, and 78 if it is of 128 queries and 2**17 rows.
  block_rows = 2**13
  _axis = 1

  def no_best(self, queries: int, count: int) -> HostBest:
    """Before the first block."""
    return HostBest(queries, count)

  @functools.cached_property
  def update_best(self):
    """See `Programs`."""
    program = self._compile(self._update_best)

    def update(best, block, queries, quantiser, start, rows):
      best.add(program(None, block, queries, quantiser, start, rows), start)
      return best

    return update

  @functools.cached_property
  def update_near(self):
    """See `Programs`."""
    program = self._compile(self._update_near)

    def update(near, block, queries, quantiser, start, *rest):
      scores, above = program(
          Near(None, near.above), block, queries, quantiser, start, *rest
      )
      near.best.add(scores, start)
      return Near(near.best, above)

    return update

  def merge(self, best: HostBest) -> tuple[np.ndarray, np.ndarray]:
    """See `Programs`."""
    return best.merged()

  def wait(self, state: Any) -> None:
    """See `Programs`; it also takes the best of these scores."""
    getattr(state, 'best', state).look()

  def _merge(self, best: None, scores: jax.Array, first: jax.Array) -> Scores:
    """The scores for the host to merge."""
    del best, first
    return Scores(scores[None], maxima(scores)[None])


@functools.cache
def programs(
    devices: tuple[jax.Device, ...],
    wide: bool = False,
    on_host: bool | None = None,
) -> Programs:
  """The programs over these devices, compiled once a process.

  With `on_host` the host keeps the best, not each device; None does so on CPUs,
  if all are of this process.
  """
  if on_host is None:
    own = jax.process_index()
    on_host = all(
        d.platform == 'cpu' and d.process_index == own for d in devices
    )
  return (HostPrograms if on_host else Programs)(devices, wide)


def _of_devices(x: jax.Array) -> Sequence[np.ndarray]:
  """The shard of each device, in the order of rows, without copies."""
  shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
  return [np.asarray(shard.data)[0] for shard in shards]
