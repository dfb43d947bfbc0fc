"""The layout `Packed`: several texts share a row."""

import dataclasses

import numpy as np

from dualenc_jax.data.layouts.layout import (
  GroupShape,
  in_order,
  longest_first,
  padded_shape,
  Placement,
  Shape,
)
from dualenc_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Packed:
  """Texts one after the other in rows of the limit, none attending to another.

  The number of rows of a cell is chosen from a sample of batches: as many as
  each of them needs, so that almost every batch fits. One that does not takes a
  tenth, then three tenths more rows, and if even these do not hold it, it is
  padded: nothing is dropped or put off, so a step has the same pairs in every
  layout.

  Attributes:
    sample: most cells that are packed to choose the number of rows.
  """

  sample: int = 512

  GROWTH = (1.0, 1.1, 1.3)

  def __post_init__(self):
    if self.sample < 1:
      raise UserError(f'Packed.sample is {self.sample}; expected at least 1.')

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    """See `Layout`."""
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
    """See `Layout`."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Packing:
  """Texts of one cell in rows; a missing text is in row 0, slot 0.

  Attributes:
    rows: how many are used.
    row_of: int64 [T].
    slots: int64 [T], place of a text among those of its row.
    starts: int64 [T], its first token.
  """

  rows: int
  row_of: np.ndarray
  slots: np.ndarray
  starts: np.ndarray


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
  open_rows = [[] for _ in range(size + 1)]  # By remaining room.
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
  row_of = np.array(row_of, np.int64)
  by_row = np.argsort(row_of, kind='stable')
  sorted_rows = row_of[by_row]
  first = np.searchsorted(sorted_rows, np.arange(rows))
  out[1, order[by_row]] = np.arange(len(order)) - first[sorted_rows]
  return _Packing(rows, *out)
