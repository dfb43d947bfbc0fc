"""Rows of unequal length: one flat array and offsets, in memory or mapped."""

from collections.abc import Iterable, Sequence
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
  """n rows; row i is `values[offsets[i]:offsets[i + 1]]`.

  Attributes:
    values: one axis: token ids, or the UTF-8 bytes of texts (uint8).
    offsets: int64 [n + 1], from 0 to len(values).
  """

  values: np.ndarray
  offsets: np.ndarray

  @classmethod
  def from_rows(cls, rows: Sequence[Sequence[int]], dtype) -> 'Ragged':
    """Copies a list of lists (or arrays) of integers."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = (value for row in rows for value in row)
    values = np.fromiter(flat, dtype, int(lengths.sum()))
    return cls(values, lengths_to_offsets(lengths))

  @classmethod
  def from_texts(cls, texts: Iterable[str]) -> 'Ragged':
    """Encodes texts as UTF-8."""
    rows = [text.encode('utf-8') for text in texts]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return cls(
        np.frombuffer(b''.join(rows), np.uint8), lengths_to_offsets(lengths)
    )

  def __len__(self) -> int:
    return len(self.offsets) - 1

  @property
  def lengths(self) -> np.ndarray:
    """int64 [n]."""
    return np.diff(self.offsets)

  def row(self, index: int) -> np.ndarray:
    """Row `index`, a view."""
    return self.values[self.offsets[index] : self.offsets[index + 1]]

  def text(self, index: int) -> str:
    """Row `index` of a uint8 Ragged as a string."""
    return self.row(index).tobytes().decode('utf-8')

  def padded(
      self, indices: np.ndarray, length: int, dtype=np.int32
  ) -> np.ndarray:
    """Rows `indices` [n], cut to `length` and padded with 0: [n, length]."""
    indices = np.asarray(indices)
    starts = self.offsets[indices]
    lengths = np.minimum(self.offsets[indices + 1] - starts, length)
    out = np.zeros((len(indices), length), dtype)
    real = np.arange(length) < lengths[:, None]
    # Position of each real token in `values`: its row's start plus its rank.
    shift = starts - np.cumsum(lengths) + lengths
    flat = np.arange(lengths.sum()) + np.repeat(shift, lengths)
    out[real] = self.values[flat]
    return out


def lengths_to_offsets(lengths: np.ndarray) -> np.ndarray:
  """[n] lengths -> int64 [n + 1] offsets."""
  offsets = np.zeros(len(lengths) + 1, np.int64)
  np.cumsum(lengths, out=offsets[1:])
  return offsets
