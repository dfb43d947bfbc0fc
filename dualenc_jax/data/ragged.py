"""Rows of unequal length: one flat array and offsets, in memory or mapped."""

from collections.abc import Iterable, Sequence
import dataclasses
import pathlib

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

  @classmethod
  def load(cls, folder: str | pathlib.Path, name: str) -> 'Ragged':
    """Maps what a `RaggedWriter` of this folder and name has written."""
    return cls(
        map_array(folder, f'{name}.values'),
        map_array(folder, f'{name}.offsets'),
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


class RaggedWriter:
  """Appends rows to raw files in `folder`; `Ragged.load` maps them.

  A context manager; the files are complete once it has been left.
  """

  def __init__(self, folder: str | pathlib.Path, name: str, dtype):
    self._dtype = np.dtype(dtype)
    self._values = open_array(folder, f'{name}.values', self._dtype)
    self._offsets = open_array(folder, f'{name}.offsets', np.int64)
    self._end = 0
    np.zeros(1, np.int64).tofile(self._offsets)

  def append(self, rows: Ragged) -> None:
    """Writes all rows after those that are there."""
    rows.values.astype(self._dtype, copy=False).tofile(self._values)
    (rows.offsets[1:] + self._end).tofile(self._offsets)
    self._end += len(rows.values)

  def __enter__(self) -> 'RaggedWriter':
    return self

  def __exit__(self, *unused_error) -> None:
    self._values.close()
    self._offsets.close()


def lengths_to_offsets(lengths: np.ndarray) -> np.ndarray:
  """[n] lengths -> int64 [n + 1] offsets."""
  offsets = np.zeros(len(lengths) + 1, np.int64)
  np.cumsum(lengths, out=offsets[1:])
  return offsets


def open_array(folder: str | pathlib.Path, name: str, dtype):
  """A new raw file to append to, its dtype in its name: `<name>.<dtype>`."""
  return open(pathlib.Path(folder) / f'{name}.{np.dtype(dtype).name}', 'xb')


def map_array(folder: str | pathlib.Path, name: str) -> np.ndarray:
  """Maps the file of `open_array` read-only, as a one-dimensional array."""
  (path,) = pathlib.Path(folder).glob(f'{name}.*')
  dtype = np.dtype(path.suffix[1:])
  if not path.stat().st_size:  # An empty file cannot be mapped.
    return np.zeros(0, dtype)
  # The plain view indexes faster than np.memmap's own subclass.
  return np.asarray(np.memmap(path, dtype, 'r'))
