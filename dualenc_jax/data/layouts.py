"""The texts of a batch in rows of tokens, the input of towers.

A batch is C cells, one a device and micro-batch, of P pairs each; nothing of a
cell depends on another, so none leaves its device. A cell has T texts for a
tower: its P queries, or P (1 + K) passages, each pair's positive first, then
its hard negatives. They are the segments of rows, where a layout puts them.

A layout sees lengths only. It never changes the pairs of a batch. The number of
shapes of arrays, and with it the number of compiled programs, is fixed before
the first step.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.utils.errors import expect


class TextRows(NamedTuple):
  """The texts of a tower, in every cell R rows of L tokens and S segments.

  Attributes:
    tokens: int32 [C, R, L], the texts of a row one after the other, then 0.
    lengths: int32 [C, R, S], tokens of each segment of a row; empty segments
      have 0 and come last.
    texts: int32 [C, R, S], which text of its cell a segment is.
    places: int32 [C, T], for each text of a cell the number of its segment,
      empty ones counted; None where text t is segment t. A hard negative that
      is missing has -1.
  """

  tokens: Any
  lengths: Any
  texts: Any
  places: Any = None

  @property
  def num_cells(self) -> int:
    """C."""
    return self.tokens.shape[0]

  @property
  def num_texts(self) -> int:
    """T, texts of a cell."""
    if self.places is not None:
      return self.places.shape[1]
    return self.lengths.shape[1] * self.lengths.shape[2]


class Shape(NamedTuple):
  """Static sizes of `TextRows`: R, L and S."""

  rows: int
  length: int
  segments: int


class Placement(NamedTuple):
  """Segments of texts, int64 [C, T], -1 for missing ones, and first tokens.

  No `places` where text t is segment t.
  """

  places: np.ndarray | None
  starts: np.ndarray

  def select(self, cells: slice | np.ndarray) -> 'Placement':
    """The placement of some cells."""
    places = None if self.places is None else self.places[cells]
    return Placement(places, self.starts[cells])


@dataclasses.dataclass(frozen=True)
class Padded:
  """A layout of a text a row, all padded to the limit."""

  num_shapes = 1

  def shapes(
      self, sample: np.ndarray, limit: int, together: int = 1
  ) -> list[Shape]:
    """The one shape; arguments are those of `Packed.shapes`."""
    del together
    return [padded_shape(sample.shape[1], limit)]

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement:
    """Puts texts of lengths [C, T] into the shape."""
    del shape
    return Placement(None, np.zeros_like(lengths))


@dataclasses.dataclass(frozen=True)
class Packed:
  """A layout of several texts in a row, none of which attends to another.

  The number of rows of a cell is the most that any batch of a sample needs, so
  that almost every batch fits. A batch that does not fit gets a tenth more
  rows, then three tenths, and is padded as a last resort. No pair is dropped or
  postponed, so a step has the same pairs in every layout.

  Attributes:
    num_shapes: shapes for the batches of the sample, 1 to 16. Each of several
      is taken by as large a share of them, so that fewer rows are empty, and is
      compiled when the first batch takes it.
  """

  num_shapes: int = 1

  GROWTH = (1.1, 1.3)
  # Cells that are packed to choose the number of rows, at most.
  SAMPLE = 512

  def __post_init__(self):
    expect(
        1 <= self.num_shapes <= 16, 'Packed.num_shapes', self.num_shapes,
        '1 to 16: each is a program to compile',
    )

  def shapes(
      self, sample: np.ndarray, limit: int, together: int = 1
  ) -> list[Shape]:
    """The shapes to try in turn, rising; the last holds any texts.

    Number `num_shapes` is the most that the sample needs; some may be equal.

    Args:
      sample: lengths of the texts of some cells, int64 [cells, T], 0 for
        missing ones.
      limit: the most tokens of a text.
      together: cells, on all sides, that a batch has one shape for.
    """
    # Some of each batch, rather than all of a few.
    some = sample[:: -(-len(sample) // self.SAMPLE)]
    packings = [_pack(lengths, limit) for lengths in some]
    rows = np.array([packing.rows for packing in packings])
    shares = np.arange(1, self.num_shapes + 1) / self.num_shapes
    # A batch fits where each of its cells does.
    of_batches = np.quantile(rows, shares ** (1 / together), method='higher')
    most = max(1, int(rows.max()))
    segments = max(int(packing.slots.max()) + 1 for packing in packings)
    # Room for a row of more and shorter texts than any of the sample.
    segments = min(-(-segments * 5 // 16) * 4, limit)
    padded = padded_shape(sample.shape[1], limit)
    counts = [*of_batches[:-1].tolist(), most]
    counts += [int(np.ceil(growth * most)) for growth in self.GROWTH]
    shapes = [Shape(max(1, count), limit, segments) for count in counts]
    smaller = [shape for shape in shapes if shape.rows < padded.rows]
    return [*smaller, padded]

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement | None:
    """Puts texts of lengths [C, T] into a shape; None if they do not fit."""
    if _is_padded(shape, lengths.shape[1]):
      return Placement(None, np.zeros_like(lengths))
    places, starts = np.empty((2, *lengths.shape), np.int64)
    for cell, row in enumerate(lengths):
      packing = _pack(row, shape.length)
      if packing.rows > shape.rows or packing.slots.max() >= shape.segments:
        return None
      places[cell] = packing.row_of * shape.segments + packing.slots
      starts[cell] = packing.starts
    return Placement(np.where(lengths > 0, places, -1), starts)


Layout = Padded | Packed


def padded_shape(texts: int, limit: int) -> Shape:
  """A text a row, in their order; holds any texts."""
  return Shape(texts, limit, 1)


def padded_rows(tokens: np.ndarray) -> TextRows:
  """A text a row, every pair a cell: int32 [B, T, L], padded with 0."""
  lengths = (tokens != 0).sum(axis=-1, dtype=np.int32)[..., None]
  texts = np.broadcast_to(
      np.arange(tokens.shape[1], dtype=np.int32)[None, :, None], lengths.shape
  )
  return TextRows(tokens, lengths, texts)


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
  inside = lengths > 0
  cell, text = np.nonzero(inside)
  segment = places[inside]
  row = cell * shape.rows + segment // shape.segments
  tokens = np.zeros((cells, shape.rows, shape.length), np.int32)
  own, of_cell = np.zeros((2, cells, shape.rows * shape.segments), np.int32)
  own[cell, segment] = lengths[inside]
  of_cell[cell, segment] = text
  copy(
      rows[inside], tokens.reshape(-1),
      row * shape.length + placement.starts[inside],
  )
  segments = cells, shape.rows, shape.segments
  return TextRows(
      tokens, own.reshape(segments), of_cell.reshape(segments),
      None if placement.places is None else placement.places.astype(np.int32),
  )


def abstract_rows(
    shape: Shape, cells: int, texts: int,
    array: Callable[[tuple[int, ...], Any], Any],
) -> TextRows:
  """The result of `lay_out`, `array(shape, dtype)` in place of each array."""
  segments = cells, shape.rows, shape.segments
  return TextRows(
      array((cells, shape.rows, shape.length), np.int32),
      array(segments, np.int32),
      array(segments, np.int32),
      None if _is_padded(shape, texts) else array((cells, texts), np.int32),
  )


class JointRows:
  """Two texts of a pair in the same rows: text i in one row and segment.

  A model that reads one text and writes another needs that. Sources and targets
  are put into rows as texts of joint lengths, in tokens of a source row; then
  the rows of each side hold its own tokens, one text after the other.

  Attributes:
    shapes: those of the layout, of targets and sources.
  """

  # Rows of targets are as long as a sample asks for, and this share longer.
  ROOM = 0.1

  def __init__(
      self, layout: Layout, limits: Sequence[int], targets: np.ndarray,
      sources: np.ndarray, cells: int = 1,
  ):
    """Chooses the shapes by the lengths of a sample, int64 [n, P] each.

    `limits` are the most tokens of a target, and of a source, which is the
    length of a row of several sources; `cells` are those of a batch.
    """
    self._layout = layout
    limit, self._row = limits
    share = targets.sum() / max(sources.sum(), 1)
    longest = int(np.ceil((1 + self.ROOM) * share * self._row))
    self._target_row = -(-max(longest, limit) // 8) * 8
    self.shapes: list[tuple[Shape, ...]] = [
        (shape._replace(
            length=limit if shape.segments == 1 else self._target_row
        ), shape)
        for shape in layout.shapes(
            self._joint(targets, sources), self._row, cells
        )
    ]

  def place(
      self, shapes: tuple[Shape, ...], targets: np.ndarray, sources: np.ndarray
  ) -> tuple[Placement, Placement] | None:
    """Puts texts of lengths [C, P] into shapes; None if they do not fit."""
    _, shape = shapes
    joint = self._layout.place(shape, self._joint(targets, sources))
    if joint is None or joint.places is None:
      return joint and (joint, joint)
    places = joint.places
    return (
        Placement(places, _starts(places, targets, shape.segments)),
        Placement(places, _starts(places, sources, shape.segments)),
    )

  def _joint(self, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Room for both: int64 [C, P], at most a row."""
    return np.maximum(sources, -(-targets * self._row // self._target_row))


def _is_padded(shape: Shape, texts: int) -> bool:
  """Whether text t is segment t: each has a row."""
  return shape.rows == texts and shape.segments == 1


def _starts(
    places: np.ndarray, lengths: np.ndarray, segments: int
) -> np.ndarray:
  """First tokens [C, P] of texts that lie one after the other in their rows."""
  order = np.argsort(places, axis=1, kind='stable')
  rows = np.take_along_axis(places, order, axis=1) // segments
  ordered = np.take_along_axis(lengths, order, axis=1)
  before = np.cumsum(ordered, axis=1) - ordered
  is_first = np.diff(rows, axis=1, prepend=-2) != 0
  of_row = np.maximum.accumulate(np.where(is_first, before, 0), axis=1)
  starts = np.empty_like(before)
  np.put_along_axis(starts, order, before - of_row, axis=1)
  return starts


class _Packing(NamedTuple):
  """Texts of one cell in `rows`; a missing text is in row 0, slot 0."""

  rows: int
  row_of: np.ndarray  # int64 [T].
  slots: np.ndarray  # int64 [T], place of a text among those of its row.
  starts: np.ndarray  # int64 [T], its first token.


def _pack(lengths: np.ndarray, size: int) -> _Packing:
  """Best fit, the longest first: each text goes where least room is left.

  Texts of one length are put down together, as many at once as there are rows
  of one remaining room.
  """
  most = lengths.max(initial=0)
  # NumPy sorts integers of 16 bits by radix, four times as fast.
  dtype = np.uint16 if most < 2**16 else np.int64
  order = np.argsort((most - lengths).astype(dtype), kind='stable')
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
