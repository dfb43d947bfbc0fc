"""Token caches on disk: a writer, and memory maps."""

from collections.abc import Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

# A file's name ends with the dtype of its numbers.
_FILE = re.compile(r'\w+(\.\w+)?\.(u?int(8|16|32|64)|float(16|32|64)|bool)')
_BLOCK = 2**20  # Offsets that are checked at once.
HEADER = 'header.json'
# Arrays with a value, or a row, an example.
_OF_EXAMPLES = (
    'query_tokens', 'passage_tokens', 'query_fingerprints',
    'passage_fingerprints', 'query_texts', 'passage_texts', 'query_ids',
    'passage_ids', 'names', 'locations', 'relevances',
)


class ArrayWriter:
  """Appends to the file `<folder>/<name>.<dtype>`; `rows` are its values."""

  def __init__(self, folder: pathlib.Path, name: str, dtype: Any):
    self._dtype = np.dtype(dtype)
    self.path = folder / f'{name}.{self._dtype.name}'
    self.rows = self._last = 0
    self._file = open(self.path, 'xb')

  def append(self, values: np.ndarray) -> None:
    """Adds values [n] of this dtype."""
    self._file.write(np.ascontiguousarray(values, self._dtype).data)
    self.rows += len(values)

  def append_offsets(self, offsets: np.ndarray) -> None:
    """Adds offsets [n + 1], which begin with 0, after the existing ones."""
    self.append(offsets[self.rows > 0 :] + self._last)
    self._last += int(offsets[-1])

  def sync(self) -> None:
    """Returns when everything is on the disk."""
    self._file.flush()
    os.fsync(self._file.fileno())

  def close(self) -> None:
    self._file.close()


def _map_array(path: pathlib.Path, rows: int) -> np.ndarray:
  """Maps a file of `rows` numbers, read-only; DamagedCache for other ones."""
  dtype = np.dtype(path.suffix[1:])
  size = path.stat().st_size if untrusted.is_file(path) else None
  if size != rows * dtype.itemsize:
    raise DamagedCache(f'{path} has {size} bytes; expected {rows} values')
  if not rows:  # An empty file cannot be mapped.
    return np.zeros(0, dtype)
  # The plain view indexes faster than np.memmap's own subclass.
  return np.asarray(np.memmap(path, dtype, 'r'))


def _check_offsets(path: pathlib.Path, offsets: np.ndarray, end: int) -> None:
  """Raises DamagedCache unless offsets ascend from 0 to `end`."""
  fits = offsets.dtype == np.int64 and (offsets[0], offsets[-1]) == (0, end)
  for start in range(0, len(offsets) * fits, _BLOCK):
    fits &= bool((np.diff(offsets[start : start + _BLOCK + 1]) >= 0).all())
  if not fits:
    raise DamagedCache(f'{path}: offsets do not ascend from 0 to {end}')


class DamagedCache(Exception):
  """A cache folder whose files are not those of its header."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
  """Tokenised examples on disk, n of them, memory-mapped.

  The arrays are attributes, too: those below; of an extra column per query, as
  `weights`, [n]; of one per candidate, as `scores`, [n] of the passages, and
  `negative_scores` [number of negatives].

  Attributes:
    header: the key (task, options, split, columns, vocabulary, lengths,
      source), counts, and the number of values of each file.
    arrays: all of the following by name.
    query_tokens, passage_tokens: ids, n rows, each ending with EOS, but empty
      where an example has no such text.
    negative_tokens: rows of all examples' hard negatives, one after the other.
    negative_offsets: int64 [n + 1]; example i has the negative rows
      negative_offsets[i] to negative_offsets[i + 1].
    query_fingerprints, passage_fingerprints, negative_fingerprints: uint64, of
      the tokens.
    query_texts, passage_texts: UTF-8, n rows; `.text(i)` is a string.
    query_ids, passage_ids: the task's own, or 'q' or 'p' and a hash of the
      text.
    names: what a search hit displays, or ''.
    locations: 'file:line', or ''.
    answers, answers_offsets: strings, as the negatives are.
    relevances: int32 [n], grade of the passage for the query.
  """

  folder: pathlib.Path
  header: dict[str, Any]
  arrays: Mapping[str, Ragged | np.ndarray]

  @classmethod
  def open(cls, folder: str | pathlib.Path) -> 'Cache':
    """Maps a complete cache, of which only offsets are read.

    Raises:
      DamagedCache: the header is missing, or a file is not of its size there.
    """
    folder = pathlib.Path(folder)
    arrays: dict[str, Any] = {}
    try:
      header = json_file.read(folder / HEADER, examples=int, files={str: int})
      for file, rows in header['files'].items():
        if not _FILE.fullmatch(file):
          raise DamagedCache(f'{folder}: {file!r} is not a file of numbers')
        arrays[file.rpartition('.')[0]] = _map_array(folder / file, rows)
      for file in [name for name in arrays if name.endswith('.values')]:
        name = file.removesuffix('.values')
        values, offsets = arrays.pop(file), arrays.pop(f'{name}.offsets')
        _check_offsets(folder / name, offsets, len(values))
        arrays[name] = Ragged(values, offsets)
      for file in [name for name in arrays if name.endswith('_offsets')]:
        name = file.removesuffix('_offsets')
        rows = arrays.get(name, arrays.get(f'{name}_tokens', ()))
        _check_offsets(folder / file, arrays[file], len(rows))
      for name in _OF_EXAMPLES:
        if len(arrays[name]) != header['examples']:
          raise DamagedCache(
              f'{folder} has {len(arrays[name])} {name}, its header says'
              f' {header["examples"]} examples'
          )
    except (UserError, OSError, ValueError, KeyError, IndexError) as error:
      raise DamagedCache(f'{folder} is damaged: {error}') from error
    return cls(folder, header, arrays)

  def __getattr__(self, name: str) -> Any:
    try:
      return self.__dict__['arrays'][name]
    except KeyError:
      raise AttributeError(f'The cache has no {name}.') from None

  def __len__(self) -> int:
    return len(self.query_tokens)


class CacheWriter(contextlib.ExitStack):
  """Appends examples to the files of a cache, in a new folder of its own.

  The files depend on the examples only, not on how these were divided.
  `examples` have been written.
  """

  def __init__(self, folder: pathlib.Path, key: Mapping[str, Any]):
    """Makes the folder; it must not exist."""
    super().__init__()
    folder.mkdir(parents=True)
    self.folder = folder
    self.examples = 0
    self._key = dict(key)
    self._files: dict[str, ArrayWriter] = {}

  def append(self, arrays: Mapping[str, Ragged | np.ndarray]) -> None:
    """Writes what `stack` makes of examples."""
    for name, array in arrays.items():
      if isinstance(array, Ragged):
        values, offsets = array.values, array.offsets
        self._file(f'{name}.values', values.dtype).append(values)
        self._file(f'{name}.offsets', np.int64).append_offsets(offsets)
      elif name.endswith('_offsets'):
        self._file(name, array.dtype).append_offsets(array)
      else:
        self._file(name, array.dtype).append(array)
    self.examples += len(arrays['query_tokens'])

  def _file(self, name: str, dtype) -> ArrayWriter:
    if name not in self._files:
      file = self._files[name] = ArrayWriter(self.folder, name, dtype)
      # On a full disk a close may fail; the others follow all the same.
      self.callback(file.close)
    return self._files[name]

  def finish(self) -> None:
    """Writes the header, with which the cache is whole."""
    for array in self._files.values():
      array.sync()
    header = {
        **self._key,
        'examples': self.examples,
        'negatives': self._files['negative_fingerprints'].rows,
        'files': {file.path.name: file.rows for file in self._files.values()},
    }
    with files.replacing(self.folder / HEADER, sync=True) as file:
      file.write(json.dumps(header, indent=2).encode() + b'\n')
