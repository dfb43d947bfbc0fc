"""Layouts: the placement of a batch's texts in rows of static lengths.

A layout sees lengths only. It never changes the pairs of a batch; the number of
shapes of arrays, and with it the number of compiled programs, is fixed before
the first step.

Shapes: C cells, T texts a cell, see `dualenc_jax.data.text.text_rows`.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from dualenc_jax.data.text.text_rows import RowGroup, TextRows
from dualenc_jax.utils.errors import expect


class GroupShape(NamedTuple):
  """Static shape of a `RowGroup`: [C, rows, length], [C, rows, segments]."""

  rows: int
  length: int
  segments: int


Shape = tuple[GroupShape, ...]


class Placement(NamedTuple):
  """Segments of texts, int64 [C, T], -1 for missing ones, and first tokens.

  No `places` where text t is segment t.
  """

  places: np.ndarray | None
  starts: np.ndarray

  def of(self, cells: slice | np.ndarray) -> 'Placement':
    """The placement of some cells."""
    places = None if self.places is None else self.places[cells]
    return Placement(places, self.starts[cells])


class Layout(Protocol):
  """A way to put texts into rows."""

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    """The shapes to try in turn, the usual one first; the last holds any texts.

    `sample` are lengths of the texts of some cells, int64 [cells, T], 0 for
    missing ones; `limit` is the most tokens of a text.
    """

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement | None:
    """Puts texts of lengths [C, T] into a shape; None if they do not fit."""


@dataclasses.dataclass(frozen=True)
class Padded:
  """A text a row, all padded to the limit."""

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    return [padded_shape(sample.shape[1], limit)]

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement:
    del shape
    return Placement(None, np.zeros_like(lengths))


def in_order(shape: Shape, texts: int) -> bool:
  """Whether text t is segment t: each has a row, and all one length."""
  return len(shape) == 1 and shape[0].rows == texts and shape[0].segments == 1


def padded_shape(texts: int, limit: int) -> Shape:
  """A text a row, in their order; holds any texts."""
  return (GroupShape(texts, limit, 1),)


def longest_first(lengths: np.ndarray) -> np.ndarray:
  """Stable order of the last axis by length, descending: int64 [..., T]."""
  most = lengths.max(initial=0)
  # NumPy sorts integers of 16 bits by radix, four times as fast.
  dtype = np.uint16 if most < 2**16 else np.int64
  return np.argsort((most - lengths).astype(dtype), axis=-1, kind='stable')


def lay_out(
    shape: Shape, placement: Placement, rows: np.ndarray, lengths: np.ndarray,
    copy: Callable[[np.ndarray, np.ndarray, np.ndarray], None],
) -> TextRows:
  """Builds the arrays of a batch.

  `copy` (rows [n], flat out, starts [n]), as `Pool.copy`, finds each text by
  its row, [C, T, ...], and writes as many tokens as `lengths` [C, T] say.
  """
  cells, texts = lengths.shape
  places = placement.places
  if places is None:
    places = np.broadcast_to(np.arange(texts), lengths.shape)
  groups, first = [], 0
  for group in shape:
    size = group.rows * group.segments
    inside = (places >= first) & (places < first + size) & (lengths > 0)
    cell, text = np.nonzero(inside)
    segment = places[inside] - first
    row = cell * group.rows + segment // group.segments
    tokens = np.zeros((cells, group.rows, group.length), np.int32)
    own, of_cell = np.zeros((2, cells, size), np.int32)
    own[cell, segment] = lengths[inside]
    of_cell[cell, segment] = text
    copy(
        rows[inside],
        tokens.reshape(-1),
        row * group.length + placement.starts[inside],
    )
    segments = cells, group.rows, group.segments
    groups.append(
        RowGroup(tokens, own.reshape(segments), of_cell.reshape(segments))
    )
    first += size
  if placement.places is None:
    return TextRows(tuple(groups))
  return TextRows(tuple(groups), placement.places.astype(np.int32))


def abstract_rows(shape: Shape, cells: int, texts: int, array) -> TextRows:
  """The result of `lay_out`, `array(shape, dtype)` in place of each array."""
  groups = tuple(
      RowGroup(
          array((cells, group.rows, group.length), np.int32),
          array((cells, group.rows, group.segments), np.int32),
          array((cells, group.rows, group.segments), np.int32),
      )
      for group in shape
  )
  if in_order(shape, texts):
    return TextRows(groups)
  return TextRows(groups, array((cells, texts), np.int32))


@dataclasses.dataclass(frozen=True)
class Grouped:
  """The texts of a cell, sorted by length, in groups of rows of one length.

  The rows of a group, and their length, a multiple of `step`, are chosen from a
  sample of batches: the fewest tokens that hold every one of them, and no group
  that saves less than `GROUP_COST`. A rare batch that does not fit takes the
  next shape, and if that does not hold it either, it is padded. In both shapes
  a text has the room of one that is longer by the share `MARGINS` of the ranks.

  Every group, at most `groups` of a tower, is encoded on its own, so the
  program grows with their number.
  """

  groups: int = 8
  step: int = 8

  MARGINS = (0.01, 0.05)
  # Tokens that a group must save to be worth compiling and launching.
  GROUP_COST = 256

  def __post_init__(self):
    expect(self.groups >= 1, 'Grouped.groups', self.groups, 'at least 1')
    expect(self.step >= 1, 'Grouped.step', self.step, 'at least 1')

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    # The longest text of each rank, over all cells of the sample.
    most = np.sort(sample, axis=1)[:, ::-1].max(axis=0)
    shapes = []
    # The fewer cells were seen, the more often one goes beyond them all.
    for share, longest in zip(self.MARGINS, (most[0], limit)):
      share = min(share * (1 + 100 / len(sample)), 1.0)
      margin = int(np.ceil(share * len(most)))
      longer = [np.full(margin, longest), most[: len(most) - margin]]
      shapes.append(self._shape(np.concatenate(longer), limit))
    shapes.append(padded_shape(sample.shape[1], limit))
    return list(dict.fromkeys(shapes))

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement | None:
    if in_order(shape, lengths.shape[1]):
      if lengths.max(initial=0) > shape[0].length:
        return None
      return Placement(None, np.zeros_like(lengths))
    rows = np.array([group.rows for group in shape])
    room = np.array([group.length for group in shape])
    ends = np.cumsum(rows)
    order = longest_first(lengths)
    longest = np.take_along_axis(lengths, order[:, ends - rows], axis=1)
    if (longest > room).any():
      return None
    if ends[-1] < lengths.shape[1]:
      if np.take_along_axis(lengths, order[:, ends[-1] :], axis=1).any():
        return None
    places = np.full_like(lengths, -1)
    ranks = np.broadcast_to(np.arange(ends[-1]), (len(lengths), ends[-1]))
    np.put_along_axis(places, order[:, : ends[-1]], ranks, axis=1)
    places[lengths == 0] = -1
    return Placement(places, np.zeros_like(lengths))

  def _shape(self, most: np.ndarray, limit: int) -> Shape:
    """The least cost that holds texts as long as `most` [T], descending."""
    rounded = np.minimum(-(-most // self.step) * self.step, limit)
    lengths, counts = np.unique(rounded[rounded > 0], return_counts=True)
    lengths, counts = lengths[::-1], counts[::-1]  # The longest first.
    if not len(lengths):
      lengths, counts = np.array([limit]), np.array([1])
    before = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: (cost, where the groups start) of the j longest lengths in at
    # most g groups.
    best: list[tuple[Any, tuple[int, ...]]] = [(0, ())]
    best += [(np.inf, ())] * len(lengths)

    def with_group(i, j):
      """Lengths i to j as one more group."""
      tokens = lengths[i] * (before[j] - before[i])
      return best[i][0] + self.GROUP_COST + tokens, (*best[i][1], i)

    for _ in range(self.groups):
      best = [
          min([best[j], *(with_group(i, j) for i in range(j))])
          for j in range(len(lengths) + 1)
      ]
    starts = best[-1][1]
    ends = (*starts[1:], len(lengths))
    return tuple(
        GroupShape(int(before[j] - before[i]), int(lengths[i]), 1)
        for i, j in zip(starts, ends)
    )


@dataclasses.dataclass(frozen=True)
class Packed:
  """Texts one after the other in rows of the limit, none attending to another.

  The number of rows of a cell is the most that any batch of a sample needs, so
  that almost every batch fits. One that does not takes a tenth, then three
  tenths more rows, and else is padded: no pair is dropped or put off, so a step
  has the same pairs in every layout. At most `sample` cells are packed to
  choose the number of rows.
  """

  sample: int = 512

  GROWTH = (1.0, 1.1, 1.3)

  def __post_init__(self):
    expect(self.sample >= 1, 'Packed.sample', self.sample, 'at least 1')

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    # Some of each batch, rather than all of a few.
    some = sample[:: -(-len(sample) // self.sample)]
    packings = [_pack(lengths, limit) for lengths in some]
    rows = max(1, *(packing.rows for packing in packings))
    segments = max(int(packing.slots.max()) + 1 for packing in packings)
    # Room for a row of more and shorter texts than any of the sample.
    segments = min(-(-segments * 5 // 16) * 4, limit)
    padded = padded_shape(sample.shape[1], limit)
    shapes = [
        (GroupShape(int(np.ceil(growth * rows)), limit, segments),)
        for growth in self.GROWTH
    ]
    smaller = [s for s in shapes if s[0].rows < padded[0].rows]
    return [*dict.fromkeys(smaller), padded]

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement | None:
    (group,) = shape
    if in_order(shape, lengths.shape[1]):
      return Placement(None, np.zeros_like(lengths))
    places, starts = np.empty((2, *lengths.shape), np.int64)
    for cell, row in enumerate(lengths):
      packing = _pack(row, group.length)
      if packing.rows > group.rows or packing.slots.max() >= group.segments:
        return None
      places[cell] = packing.row_of * group.segments + packing.slots
      starts[cell] = packing.starts
    return Placement(np.where(lengths > 0, places, -1), starts)


class _Packing(NamedTuple):
  """Texts of one cell in rows; a missing text is in row 0, slot 0."""

  rows: int  # That are used.
  row_of: np.ndarray  # int64 [T].
  slots: np.ndarray  # int64 [T], place of a text among those of its row.
  starts: np.ndarray  # int64 [T], its first token.


def _pack(lengths: np.ndarray, size: int) -> _Packing:
  """Best fit, the longest first: each text goes where least room is left.

  Texts of one length are put down together, as many at once as there are rows
  of one remaining room.
  """
  order = longest_first(lengths)
  order = order[: np.count_nonzero(lengths)]
  descending = lengths[order]
  edges = np.flatnonzero(np.diff(descending)) + 1
  bounds = [0, *edges.tolist(), len(order)] if len(order) else []
  # By remaining room.
  open_rows: list[list[int]] = [[] for _ in range(size + 1)]
  rooms = 0  # Bit r is set where open_rows[r] has rows.
  rows = 0
  row_of, room_of = [], []
  for start, end in zip(bounds, bounds[1:]):
    length = int(descending[start])
    left = end - start
    while left:
      fitting = rooms >> length
      if fitting:
        room = length + (fitting & -fitting).bit_length() - 1
        chosen = open_rows[room]
        if len(chosen) <= left:
          open_rows[room] = []
          rooms ^= 1 << room
        else:
          open_rows[room] = chosen[left:]
          chosen = chosen[:left]
      else:
        room = size
        count = left // (size // length) or 1
        chosen = list(range(rows, rows + count))
        rows += count
      count = len(chosen)
      row_of += chosen
      room_of += [room] * count
      left -= count
      if room > length:
        open_rows[room - length] += chosen
        rooms |= 1 << (room - length)
  out = np.zeros((3, len(lengths)), np.int64)
  out[0, order] = row_of
  out[2, order] = size - np.array(room_of, np.int64)
  # Texts are put into a row from its start on, so a text's slot is its rank.
  by_row = np.argsort(np.array(row_of, np.int64), kind='stable')
  sorted_rows = np.array(row_of, np.int64)[by_row]
  first = np.searchsorted(sorted_rows, np.arange(rows))
  out[1, order[by_row]] = np.arange(len(order)) - first[sorted_rows]
  return _Packing(rows, *out)
