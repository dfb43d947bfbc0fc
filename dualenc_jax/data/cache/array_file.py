"""Raw files of one-dimensional arrays: appended to, and mapped."""

import os
import pathlib

import numpy as np

_BLOCK = 2**20  # Values that are written at once where one is repeated.


class ArrayWriter:
  """Appends to the file `<folder>/<name>.<dtype>`.

  An array whose values are all equal is kept as one of them, whatever its
  length: a column that a data set does not use costs nothing.

  Attributes:
    path: of the file.
    rows: values of the array.
    size: bytes of the file.
    last: the last value, 0 of an empty array.
  """

  def __init__(
      self, folder: pathlib.Path, name: str, dtype, rows: int = 0, size: int = 0
  ):
    """Opens the file; what it has after `size` bytes, `rows` values, goes."""
    self._dtype = np.dtype(dtype)
    self.path = folder / f'{name}.{self._dtype.name}'
    self.rows, self.size = rows, size
    self._file = open(self.path, 'a+b')
    self._file.truncate(size)
    self.last = self._dtype.type(0)
    if size:
      self._file.seek(size - self._dtype.itemsize)
      self.last = np.frombuffer(self._file.read(), self._dtype)[0]
    # All values so far are equal, and the file has one of them at most.
    self._is_constant = size <= self._dtype.itemsize

  def append(self, values: np.ndarray) -> None:
    """Adds values [n] of this dtype."""
    if not len(values):
      return
    if not self.rows:
      self._write(values[:1])
      self.rows, self.last, values = 1, values[0], values[1:]
    other = values != self.last
    if self.last != self.last:  # NaN, of which all are alike here.
      other &= values == values
    if self._is_constant and other.any():
      for start in range(1, self.rows, _BLOCK):
        count = min(_BLOCK, self.rows - start)
        self._write(np.full(count, self.last, self._dtype))
      self._is_constant = False
    if not self._is_constant:
      self._write(values)
    self.rows += len(values)
    self.last = values[-1] if len(values) else self.last

  def append_offsets(self, offsets: np.ndarray) -> None:
    """Adds offsets [n + 1] from 0 on, moved to follow those that are there."""
    if not self.rows:
      self.append(offsets[:1])
    self.append(offsets[1:] + self.last)

  def sync(self) -> None:
    """Returns when everything is on the disk."""
    self._file.flush()
    os.fsync(self._file.fileno())

  def close(self) -> None:
    self._file.close()

  def _write(self, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values, self._dtype)
    self._file.write(values.data)
    self.size += values.nbytes


def map_array(path: pathlib.Path, rows: int) -> np.ndarray:
  """Maps the file of an `ArrayWriter` that has `rows` values, read-only."""
  dtype = np.dtype(path.suffix[1:])
  if not rows:  # An empty file cannot be mapped.
    return np.zeros(0, dtype)
  # The plain view indexes faster than np.memmap's own subclass.
  values = np.asarray(np.memmap(path, dtype, 'r'))
  return values if len(values) == rows else np.broadcast_to(values, (rows,))
