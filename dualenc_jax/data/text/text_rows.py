"""`TextRows`, the texts of a batch in rows of tokens, the input of towers.

A batch is C cells, one a device and micro-batch, of P pairs each; nothing of a
cell depends on another, so none leaves its device. A cell has T texts for a
tower: its P queries, or P (1 + K) passages, each pair's positive first, then
its hard negatives. They are the segments of rows, as some layout of
`dualenc_jax.data.layouts` puts them there: a text a row, padded, or several.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class RowGroup(NamedTuple):
  """Rows of one static length, in every cell the same number of them.

  Attributes:
    tokens: int32 [C, R, L], the texts of a row one after the other, then 0.
    lengths: int32 [C, R, S], tokens of each segment of a row, 0 where there is
      none; those that there are come first.
    texts: int32 [C, R, S], which text of its cell a segment is.
  """

  tokens: Any
  lengths: Any
  texts: Any


class TextRows(NamedTuple):
  """The texts of a tower.

  Attributes:
    groups: their rows.
    places: int32 [C, T], for each text of a cell the number of its segment
      among all segments of the groups' rows, empty ones counted; None where
      text t is segment t. A hard negative that is missing has -1.
  """

  groups: tuple[RowGroup, ...]
  places: Any = None

  @property
  def num_cells(self) -> int:
    """C."""
    return self.groups[0].tokens.shape[0]

  @property
  def num_texts(self) -> int:
    """T, texts of a cell."""
    if self.places is not None:
      return self.places.shape[1]
    return sum(math.prod(group.lengths.shape[1:]) for group in self.groups)


def from_tokens(tokens: np.ndarray) -> TextRows:
  """A text a row, every pair a cell: int32 [B, T, L], padded with 0."""
  lengths = (tokens != 0).sum(axis=-1, dtype=np.int32)[..., None]
  texts = np.broadcast_to(
      np.arange(tokens.shape[1], dtype=np.int32)[None, :, None], lengths.shape
  )
  return TextRows((RowGroup(tokens, lengths, texts),))
