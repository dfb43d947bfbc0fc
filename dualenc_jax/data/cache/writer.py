"""Writes a token cache so that it can go on after a kill."""

from collections.abc import Mapping
import contextlib
import json
import pathlib
import shutil
from typing import Any

import numpy as np

from dualenc_jax.data.cache.array_file import ArrayWriter
from dualenc_jax.data.cache.format import HEADER
from dualenc_jax.io import files
from dualenc_jax.text.ragged import Ragged

JOURNAL = 'journal.json'


class CacheWriter:
  """Appends examples to the files of a cache, in a folder of its own.

  What has been committed survives a kill: a writer of the same folder and key
  goes on after it. The files depend on the examples only, not on how these
  were divided, nor on interruptions.

  A context manager.

  Attributes:
    folder: where the files are.
    examples: how many have been written.
  """

  def __init__(self, folder: pathlib.Path, key: Mapping[str, Any]):
    """Opens a folder, or makes it.

    Args:
      folder: whatever is in it that is not of this key goes.
      key: what the header tells, beside counts and files.
    """
    self.folder = folder
    self._key = dict(key)
    state = _state(folder, key)
    if state is None:
      shutil.rmtree(folder, ignore_errors=True)
      folder.mkdir(parents=True)
      state = {'examples': 0, 'files': {}}
    files.sweep(folder)
    self.examples = state['examples']
    self._files = {}
    # On a full disk a close may fail; the others must follow all the same.
    self._stack = contextlib.ExitStack()
    for file, sizes in state['files'].items():
      self._file(*file.rsplit('.', 1), *sizes)

  @property
  def size(self) -> int:
    """Bytes of all files."""
    return sum(file.size for file in self._files.values())

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

  def _file(self, name: str, dtype, *sizes: int) -> ArrayWriter:
    if name not in self._files:
      file = ArrayWriter(self.folder, name, dtype, *sizes)
      self._files[name] = file
      self._stack.callback(file.close)
    return self._files[name]

  def commit(self) -> None:
    """Returns when the examples so far survive a kill."""
    for file in self._files.values():
      file.sync()
    state = {
        **self._key,
        'examples': self.examples,
        'negatives': self._files['negative_fingerprints'].rows,
        'files': {
            file.path.name: (file.rows, file.size)
            for file in self._files.values()
        },
    }
    with files.replacing(self.folder / JOURNAL, sync=True) as file:
      file.write(json.dumps(state, indent=2).encode() + b'\n')

  def finish(self) -> None:
    """Makes it a complete cache, which is a journal called header."""
    self.commit()
    (self.folder / JOURNAL).rename(self.folder / HEADER)

  def __enter__(self) -> 'CacheWriter':
    return self

  def __exit__(self, *unused_error) -> None:
    self._stack.close()


def _state(
    folder: pathlib.Path, key: Mapping[str, Any]
) -> dict[str, Any] | None:
  """The journal of a folder, None unless it is of this key and true."""
  try:
    # A kill between `finish` and what follows it leaves a header.
    name = HEADER if (folder / HEADER).exists() else JOURNAL
    state = json.loads((folder / name).read_text('utf-8'))
    sizes = [
        ((folder / file).stat().st_size, size)
        for file, (_, size) in state['files'].items()
    ]
  except (OSError, ValueError, KeyError, TypeError):
    return None
  same = all(state.get(name) == value for name, value in key.items())
  return state if same and all(has >= size for has, size in sizes) else None
