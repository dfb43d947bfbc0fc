"""The layout `Grouped`: rows of a few lengths, a text a row."""

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
class Grouped:
  """The texts of a cell, sorted by length, in groups of rows of one length.

  How many rows a group has, and of which length, a multiple of `step`, is
  chosen from a sample of batches: the fewest tokens that hold every one of
  them, and no group that saves less than `GROUP_COST`. A batch that they do
  not hold, which is rare, takes the next shape, and if that does not hold it
  either, it is padded. In both shapes a text has the room of one that is longer
  by the share `MARGINS` of the ranks.

  Every group is encoded on its own, so the program grows with their number.

  Attributes:
    groups: most groups of a tower.
    step: lengths of rows are multiples of it, or the limit.
  """

  groups: int = 8
  step: int = 8

  MARGINS = (0.01, 0.05)
  # Tokens that a group must save to be worth compiling and launching.
  GROUP_COST = 256

  def __post_init__(self):
    for name in ('groups', 'step'):
      if getattr(self, name) < 1:
        raise UserError(
            f'Grouped.{name} is {getattr(self, name)}; expected at least 1.'
        )

  def shapes(self, sample: np.ndarray, limit: int) -> list[Shape]:
    """See `Layout`."""
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
    """See `Layout`."""
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
    best = [(0, ())] + [(np.inf, ())] * len(lengths)
    for _ in range(self.groups):
      best = [
          min(
              [best[j]]
              + [
                  (
                      best[i][0]
                      + self.GROUP_COST
                      + lengths[i] * (before[j] - before[i]),
                      (*best[i][1], i),
                  )
                  for i in range(j)
              ]
          )
          for j in range(len(lengths) + 1)
      ]
    starts = best[-1][1]
    ends = (*starts[1:], len(lengths))
    return tuple(
        GroupShape(int(before[j] - before[i]), int(lengths[i]), 1)
        for i, j in zip(starts, ends)
    )
