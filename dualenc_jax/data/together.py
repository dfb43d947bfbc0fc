"""Two texts of a pair in the same rows: text i in one row and segment.

A model that reads one text and writes another needs that. Sources and targets
are put into rows as texts of joint lengths, in tokens of a source row; then the
rows of each side hold its own tokens, one text after the other.

Shapes: C cells, P pairs a cell.
"""

from collections.abc import Sequence

import numpy as np

from dualenc_jax.data.layouts import Layout, Placement, Shape

# Rows of targets are as long as a sample asks for, and this share longer.
_ROOM = 0.1
# Lengths of rows that hold several targets are multiples of it.
_STEP = 8


class Together:
  """Targets and sources in the rows of one layout; `shapes` are of both."""

  def __init__(
      self, layout: Layout, limits: Sequence[int], targets: np.ndarray,
      sources: np.ndarray,
  ):
    """Chooses the shapes by the lengths of a sample, int64 [cells, P] each.

    `limits` are the most tokens of a target, and of a source, which is the
    length of a row of several sources.
    """
    self._layout = layout
    self._limit, self._row = limits
    share = targets.sum() / max(sources.sum(), 1)
    longest = int(np.ceil((1 + _ROOM) * share * self._row))
    # Of a row of several targets.
    self._target_row = _round_up(max(longest, self._limit))
    self.shapes: list[tuple[Shape, ...]] = [
        (self._of_targets(shape), shape)
        for shape in layout.shapes(self._joint(targets, sources), self._row)
    ]

  def place(
      self, shapes: tuple[Shape, ...], targets: np.ndarray, sources: np.ndarray
  ) -> tuple[Placement, Placement] | None:
    """Puts texts of lengths [C, P] into shapes; None if they do not fit."""
    _, shape = shapes
    found = self._layout.place(shape, self._joint(targets, sources))
    if found is None or found.places is None:
      return found and (found, found)
    places, segments = found.places, shape[0].segments
    return (
        Placement(places, _starts(places, targets, segments)),
        Placement(places, _starts(places, sources, segments)),
    )

  def _joint(self, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Room for both: int64 [C, P], at most a row."""
    return np.maximum(sources, -(-targets * self._row // self._target_row))

  def _of_targets(self, shape: Shape) -> Shape:
    """Rows in which targets fit wherever joint lengths fit into those."""
    found = []
    for group in shape:
      length = _round_up(group.length * self._target_row // self._row)
      if group.segments == 1:
        length = min(length, self._limit)
      found.append(group._replace(length=length))
    return tuple(found)


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


def _round_up(length: int) -> int:
  return -(-length // _STEP) * _STEP
