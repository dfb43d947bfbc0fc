"""Layouts: which row, of which static length, a text of a batch lies in.

A layout sees lengths only. It never changes which pairs a batch has; how many
shapes of arrays it may use, and with them how many programs are compiled, is
fixed before the first step.

Shapes: C cells, T texts a cell, see `dualenc_jax.text.text_rows`.
"""

from collections.abc import Callable
import dataclasses
from typing import NamedTuple, Protocol

import numpy as np

from dualenc_jax.text.text_rows import RowGroup, TextRows


class GroupShape(NamedTuple):
  """Static shape of a `RowGroup`: [C, rows, length], [C, rows, segments]."""

  rows: int
  length: int
  segments: int


Shape = tuple[GroupShape, ...]


class Placement(NamedTuple):
  """Where texts lie.

  Attributes:
    places: int64 [C, T], segment of each text, -1 for missing ones; None where
      text t is segment t.
    starts: int64 [C, T], first token of each text in its row.
  """

  places: np.ndarray | None
  starts: np.ndarray

  def of(self, cells: slice | np.ndarray) -> 'Placement':
    """That of some cells."""
    places = None if self.places is None else self.places[cells]
    return Placement(places, self.starts[cells])


class Layout(Protocol):
  """How texts are put into rows."""

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    """The shapes to try in turn, the usual one first; the last holds any texts.

    Args:
      sample: lengths of the texts of some cells, int64 [cells, T], 0 for texts
        that are missing.
      limit: most tokens of a text.
    """

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement | None:
    """Puts texts of lengths [C, T] into a shape; None if they do not fit."""


@dataclasses.dataclass(frozen=True)
class Padded:
  """A text a row, all padded to the limit."""

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    """See `Layout`."""
    return [padded_shape(sample.shape[1], limit)]

  def place(self, shape: Shape, lengths: np.ndarray) -> Placement:
    """See `Layout`."""
    del shape
    return Placement(None, np.zeros_like(lengths))


def in_order(shape: Shape, texts: int) -> bool:
  """Whether text t is segment t: there is a row for each and one length."""
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


def tokens_of(shape: Shape) -> int:
  """Tokens of a cell, padding counted."""
  return sum(group.rows * group.length for group in shape)


def lay_out(
    shape: Shape,
    placement: Placement,
    rows: np.ndarray,
    lengths: np.ndarray,
    copy: Callable[[np.ndarray, np.ndarray, np.ndarray], None],
) -> TextRows:
  """Builds the arrays of a batch.

  Args:
    shape: of the arrays.
    placement: of the texts in it.
    rows: where each text is found, for `copy`, [C, T].
    lengths: its tokens, [C, T].
    copy: (rows [n], flat out, starts [n]) writes the tokens, see `Pool.copy`.

  Returns:
    The texts in rows.
  """
  cells, texts = rows.shape
  places = placement.places
  if places is None:
    places = np.broadcast_to(np.arange(texts), rows.shape)
  groups, first = [], 0
  for group in shape:
    size = group.rows * group.segments
    inside = (places >= first) & (places < first + size) & (lengths > 0)
    cell, text = np.nonzero(inside)
    segment = places[inside] - first
    row = cell * group.rows + segment // group.segments
    tokens = np.zeros((cells, group.rows, group.length), np.int32)
    of_cell, own = np.zeros((2, cells, size), np.int32)
    own[cell, segment] = lengths[inside]
    of_cell[cell, segment] = text
    copy(
        rows[inside],
        tokens.reshape(-1),
        row * group.length + placement.starts[inside],
    )
    shape_of_segments = cells, group.rows, group.segments
    groups.append(
        RowGroup(
            tokens,
            own.reshape(shape_of_segments),
            of_cell.reshape(shape_of_segments),
        )
    )
    first += size
  if placement.places is None:
    return TextRows(tuple(groups))
  return TextRows(tuple(groups), placement.places.astype(np.int32))


def abstract_rows(shape: Shape, cells: int, texts: int, array) -> TextRows:
  """What `lay_out` makes, `array(shape, dtype)` in place of each array."""
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
