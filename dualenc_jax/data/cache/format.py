"""The files of a token cache, mapped when it is opened."""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data.cache.array_file import map_array
from dualenc_jax.errors import UserError
from dualenc_jax.io import json_file
from dualenc_jax.text.ragged import Ragged

HEADER = 'header.json'


class DamagedCache(Exception):
  """A cache folder whose files are not those of its header."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
  """Tokenised examples on disk, n of them, memory-mapped.

  The arrays are attributes, too: of the columns of `data.columns` those below,
  of a number per query `weights` [n], of one per candidate `scores` [n], of the
  passages, and `negative_scores` [number of negatives].

  Attributes:
    folder: where the files are.
    header: the key (task, options, split, columns, vocabulary, lengths,
      source), counts, and for each file its values and bytes.
    arrays: all of the following by name.
    query_tokens: token ids, n rows, each ending with EOS; where there is no
      query the row is empty.
    passage_tokens: the same.
    negative_tokens: rows of all examples' hard negatives, one after the other.
    negative_offsets: int64 [n + 1]; example i has the negative rows
      negative_offsets[i] to negative_offsets[i + 1].
    query_fingerprints: uint64 [n], of the tokens.
    passage_fingerprints: uint64 [n]; a negative with the same tokens has the
      same one.
    negative_fingerprints: uint64 [number of negatives].
    query_texts: UTF-8, n rows; `query_texts.text(i)` is a string.
    passage_texts: the same.
    query_ids: the task's own, or 'q' and a hash of the text.
    passage_ids: the task's own, or 'p' and a hash of the text.
    names: what a search hit displays, or ''.
    locations: 'file:line', or ''.
    answers: strings of all examples, one after the other.
    answers_offsets: int64 [n + 1]; example i has the answers answers_offsets[i]
      to answers_offsets[i + 1].
    relevances: int32 [n], grade of the passage for the query.
  """

  folder: pathlib.Path
  header: dict[str, Any]
  arrays: Mapping[str, Ragged | np.ndarray]

  @classmethod
  def open(cls, folder: str | pathlib.Path) -> 'Cache':
    """Maps a complete cache, in no time whatever its size.

    Raises:
      DamagedCache: the header is missing, or a file is not of its size there.
    """
    folder = pathlib.Path(folder)
    arrays = {}
    try:
      header = json_file.read(folder / HEADER, files=dict)
      for file, (rows, size) in header['files'].items():
        path = folder / file
        found = path.stat().st_size if path.exists() else None
        if found != size:
          raise DamagedCache(
              f'{path} has {found} bytes, its header says {size}'
          )
        arrays[path.stem] = map_array(path, rows)
      for file in [name for name in arrays if name.endswith('.values')]:
        name = file.removesuffix('.values')
        arrays[name] = Ragged(arrays.pop(file), arrays.pop(f'{name}.offsets'))
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
      raise DamagedCache(f'{folder} is damaged: {error}') from error
    return cls(folder, header, arrays)

  def __getattr__(self, name: str) -> Ragged | np.ndarray:
    try:
      return self.__dict__['arrays'][name]
    except KeyError:
      raise AttributeError(f'The cache has no {name}.') from None

  def __len__(self) -> int:
    return len(self.query_tokens)
