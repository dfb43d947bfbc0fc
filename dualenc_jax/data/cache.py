"""Token caches: built once, memory-mapped ever after."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import glob
import hashlib
import itertools
import json
import logging
import os
import pathlib
import shutil
from typing import Any, BinaryIO

import numpy as np

from dualenc_jax.data import columns
from dualenc_jax.data.columns import Column, TEXT
from dualenc_jax.data.dataset import Dataset, rows
from dualenc_jax.data.text.ragged import (
  fingerprints,
  lengths_to_offsets,
  Ragged,
  row_offsets,
)
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import SourceUnavailable, UserError
from dualenc_jax.utils.files import GrowingFolder

FORMAT = 6
HEADER = 'header.json'
CHUNK = 4096
_UNSAFE = str.maketrans({c: '_' for c in '/\\:*?"<>| '})
# Below the folder of all caches: `<name>` is a part of the cache of this name,
# `<name>.lock` is locked by the process that builds it.
BUILDING = '.building'
_INSTEAD = 'another folder with --gin.CACHE_DIR'


Log = Callable[[str], None]
Progress = Callable[[int], None]
Example = Mapping[str, Any]
Arrays = dict[str, Ragged | np.ndarray]


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
    """Maps a complete cache; reads its header alone.

    Raises:
      DamagedCache: the header is missing, or a file is not of its size there.
    """
    folder = pathlib.Path(folder)
    arrays: dict[str, Any] = {}
    try:
      header = json_file.read(folder / HEADER, examples=int, files={str: int})
      for file, count in header['files'].items():
        untrusted.check_name(file, folder / HEADER)
        arrays[file.rpartition('.')[0]] = _map_array(folder / file, count)
      for file in [name for name in arrays if name.endswith('.values')]:
        name = file.removesuffix('.values')
        arrays[name] = Ragged(arrays.pop(file), arrays.pop(f'{name}.offsets'))
      if len(arrays['query_tokens']) != header['examples']:
        raise ValueError(f'expected {header["examples"]} examples')
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
      raise DamagedCache(f'{folder} is damaged: {error}') from error
    return cls(folder, header, arrays)

  def __getattr__(self, name: str) -> Any:
    try:
      return self.__dict__['arrays'][name]
    except KeyError:
      raise AttributeError(f'The cache has no {name}.') from None

  def __len__(self) -> int:
    return len(self.query_tokens)


def _map_array(path: pathlib.Path, count: int) -> np.ndarray:
  """Maps a file of numbers, read-only, whose name ends with their dtype."""
  dtype = np.dtype(path.suffix[1:])
  size = path.stat().st_size if untrusted.is_file(path) else None
  if size != count * dtype.itemsize:
    raise ValueError(f'{path} has {size} bytes; expected {count} values')
  if not count:  # An empty file cannot be mapped.
    return np.zeros(0, dtype)
  # The plain view indexes faster than np.memmap's own subclass.
  return np.asarray(np.memmap(path, dtype, 'r'))


def prepare(
    task: Dataset, split: str, tokenizer: Tokenizer,
    cache_dir: str | os.PathLike, log: Log = logging.getLogger(__name__).info,
    threads: int = -1, progress: Progress = lambda count: None,
) -> Cache:
  """The token cache of a task's split, built if there is none yet.

  It is keyed by the task with its options, the split, the columns, the
  vocabulary's content, both lengths and the fingerprint of the source. It is
  `<cache_dir>/<task>-<split>-<16 hex digits of the key>`. Any number of
  processes may prepare it at once: one builds it, the others wait.

  Where the source or seqio is missing, the one cache that agrees in all but the
  source serves, and the log says that the source was not checked; for a missing
  file not in the default folder, which all projects share.

  `threads` tokenise, -1 for one on each core; `progress` is called with the
  examples of every chunk that is done.

  Raises:
    UserError: bad data, no examples, a folder that cannot be written, or seqio
      is needed and missing.
  """
  cache_dir = pathlib.Path(cache_dir).expanduser()
  key = {
      'format': FORMAT,
      'task': task.task_name,
      'options': task.identity(split),
      'split': split,
      'vocabulary': tokenizer.vocabulary.sha256,
      'vocabulary_size': tokenizer.vocabulary.size,
      'query_length': tokenizer.query_length,
      'passage_length': tokenizer.passage_length,
      **tokenizer.prefixes,
  }
  # Written and read again, so that tuples compare equal to a header's lists.
  key = json.loads(json.dumps(key, default=str))
  try:
    task.check_split(split)
    table = columns.cached_columns(task, split)
    key['columns'] = {column.name: column.form for column in table}
    key['source'] = task.fingerprint(split)
  except SourceUnavailable as error:
    return _find_unchecked(cache_dir, key, error, log)
  text = json.dumps(key, sort_keys=True).encode()
  name = _prefix(key) + hashlib.sha256(text).hexdigest()[:16]
  folder = cache_dir / name
  with contextlib.suppress(DamagedCache):
    return Cache.open(folder)
  growing = GrowingFolder(folder, cache_dir / BUILDING / name)
  waiting = f'Waiting for another process, which builds {folder}.'
  with (
      files.writing(folder, _INSTEAD),
      growing.locked(lambda: log(waiting)),
  ):
    if folder.exists():
      try:
        return Cache.open(folder)  # Another process was quicker.
      except DamagedCache as damage:
        log(f'Rebuilding a damaged token cache: {damage}.')
        shutil.rmtree(folder)
    log(f'Tokenising task {task.label!r}, split {split!r}, into {folder}.')
    # A killed process may have left a part.
    shutil.rmtree(growing.partial, ignore_errors=True)
    try:
      growing.partial.mkdir(parents=True)
      examples, count = rows(task, split), 0
      with Writer(growing.partial) as writer:
        while chunk := list(itertools.islice(examples, CHUNK)):
          writer.append(stack(chunk, table, tokenizer, threads))
          count += len(chunk)
          progress(len(chunk))
      if not count:
        raise UserError(
            f'Task {task.label!r} has no examples in split {split!r}.'
            f' Options: {dict(task.options)}.'
        )
      header = {**key, 'examples': count, 'files': writer.counts}
      with files.replacing(growing.partial / HEADER, sync=True) as file:
        file.write(json.dumps(header, indent=2).encode() + b'\n')
      growing.complete()
    finally:
      shutil.rmtree(growing.partial, ignore_errors=True)
  log(f'Tokenised {count:,} examples.')
  return Cache.open(folder)


def _find_unchecked(
    cache_dir: pathlib.Path, key: dict[str, Any], error: SourceUnavailable,
    log: Log,
) -> Cache:
  """The one complete cache whose key agrees in all but the source.

  Keys have a file's name without its folder, so that another file may agree;
  hence a missing file has none in the default folder.
  """
  wanted = {name: value for name, value in key.items() if name != 'source'}
  found = []
  for path in sorted(cache_dir.glob(f'{glob.escape(_prefix(key))}*/{HEADER}')):
    with contextlib.suppress(DamagedCache):
      cache = Cache.open(path.parent)
      if all(cache.header.get(n) == value for n, value in wanted.items()):
        found.append(cache)
  if len(found) > 1:
    raise SourceUnavailable(
        f'{error} Of the token caches in {cache_dir} {len(found)} may be of it,'
        f' such as {found[0].folder.name} and {found[1].folder.name}. Remove'
        ' those of other data.'
    ) from error
  if found:
    # Every project has a train.jsonl, and all share the default folder.
    shared = cache_dir == files.default_cache_dir() / 'tokens'
    if shared and not isinstance(error.__cause__, ImportError):
      raise SourceUnavailable(
          f'{error} The token cache {found[0].folder} is of a file of that'
          ' name. If of this one, copy it into another folder and give that by'
          ' --gin.CACHE_DIR.'
      ) from error
    log(
        f'Using the token cache {found[0].folder} without checking that its'
        f' source is unchanged: {error}'
    )
    return found[0]
  raise SourceUnavailable(
      f'{error} Or prepare the token cache where the data is, and copy it to'
      f' {cache_dir}: there is none here for task {key["task"]!r}, split'
      f' {key["split"]!r}, with this vocabulary and these lengths.'
  ) from error


def _prefix(key: Mapping[str, Any]) -> str:
  """The start of the folder names of all caches of a task and split."""
  return f'{key["task"]}-{key["split"]}-'.translate(_UNSAFE)


class Writer(contextlib.ExitStack):
  """Appends arrays to files, `<folder>/<name>.<dtype>`.

  The files depend on the examples only, not on how these were divided.
  `counts` has the number of values of each file.
  """

  def __init__(self, folder: pathlib.Path):
    super().__init__()
    self.counts: dict[str, int] = {}
    self._folder = folder
    self._files: dict[str, BinaryIO] = {}
    self._ends: dict[str, int] = {}

  def append(self, arrays: Arrays) -> None:
    """Writes what `stack` makes of examples."""
    for name, array in arrays.items():
      if isinstance(array, Ragged):
        self._append(f'{name}.values', array.values)
        self._append_offsets(f'{name}.offsets', array.offsets)
      elif name.endswith('_offsets'):
        self._append_offsets(name, array)
      else:
        self._append(name, array)

  def _append(self, name: str, values: np.ndarray) -> None:
    file = f'{name}.{values.dtype.name}'
    if file not in self._files:
      self._files[file] = self.enter_context(_synced(self._folder / file))
      self.counts[file] = 0
    self._files[file].write(np.ascontiguousarray(values).data)
    self.counts[file] += len(values)

  def _append_offsets(self, name: str, offsets: np.ndarray) -> None:
    """Adds offsets [n + 1], which begin with 0, after the existing ones."""
    last = self._ends.get(name)
    self._append(name, offsets if last is None else offsets[1:] + last)
    self._ends[name] = int(offsets[-1]) + (last or 0)


@contextlib.contextmanager
def _synced(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Yields a new file, whose content is on the disk at the end."""
  with open(path, 'xb') as file:
    yield file
    file.flush()
    os.fsync(file.fileno())


def stack(
    examples: Sequence[Example], table: Iterable[Column], tokenizer: Tokenizer,
    threads: int = -1,
) -> Arrays:
  """The arrays of all columns of examples, as `Cache` has them, offsets from 0.

  Raises:
    UserError: a value that its column cannot hold.
  """
  encoders = {
      'query': lambda texts: tokenizer.encode_queries(texts, threads),
      'passage': lambda texts: tokenizer.encode_passages(texts, threads),
  }
  arrays: Arrays = {}
  for column in table:
    if column.tower:
      arrays |= _encoded(column, examples, encoders[column.tower])
    elif column.dtype == TEXT:
      arrays |= _texts(column, examples)
    else:
      arrays |= _numbers(column, examples)
  return arrays


def _encoded(
    column: Column, examples: Sequence[Example],
    encode: Callable[[Sequence[str]], Ragged],
) -> Arrays:
  """Tokens, and texts unless these are lists.

  An empty text has 0 tokens, except a blank passage of a corpus.
  """
  rows, name = [e[column.name] for e in examples], column.key
  if column.rank:
    kept: Arrays = {f'{name}_offsets': row_offsets(rows)}
    rows = _flat(rows)
  else:
    kept = {f'{name}_texts': Ragged.from_texts(rows)}
  there = np.array([bool(text) for text in rows], bool)
  if column.name == 'passage':
    # A row without a query is one of a corpus, whose passage may be blank.
    there |= np.array([not e['query'] for e in examples], bool)
  encoded = encode([text for text, is_there in zip(rows, there) if is_there])
  lengths = np.zeros(len(rows), np.int64)
  lengths[there] = encoded.lengths
  tokens = Ragged(encoded.values, lengths_to_offsets(lengths))
  return {
      f'{name}_tokens': tokens,
      f'{name}_fingerprints': fingerprints(tokens),
      **kept,
  }


def _texts(column: Column, examples: Sequence[Example]) -> Arrays:
  rows, name = [e[column.name] for e in examples], column.key
  if column.rank:
    return {
        name: Ragged.from_texts(_flat(rows)),
        f'{name}_offsets': row_offsets(rows),
    }
  if column.hashed:
    rows = [
        text or _id(column.hashed[0], e[column.hashed])
        for text, e in zip(rows, examples)
    ]
  return {name: Ragged.from_texts(rows)}


def _numbers(column: Column, examples: Sequence[Example]) -> Arrays:
  rows: list[Any] = [e.get(column.name) for e in examples]
  name = column.key
  if column.per != 'candidate':
    rows = [column.default if value is None else value for value in rows]
    return {name: _array(column, rows, examples)}
  counts = [1 + len(e['negatives']) for e in examples]
  for i, (row, count) in enumerate(zip(rows, counts)):
    if row is None:
      rows[i] = [column.default] * count
    elif len(row) != count:
      raise UserError(
          f'{examples[i]["location"]}: the column {column.name!r} has'
          f' {len(row)} values; expected {count}, of passage and negatives.'
      )
  values = _array(column, _flat(rows), examples)
  positives = lengths_to_offsets(np.array(counts))[:-1]
  return {
      name: values[positives], f'negative_{name}': np.delete(values, positives)
  }


def _array(
    column: Column, values: Sequence[Any], examples: Sequence[Example]
) -> np.ndarray:
  try:
    return np.array(values, column.dtype)
  except (TypeError, ValueError, OverflowError):
    for example in examples:
      value = example.get(column.name, 0)
      try:
        np.array(value, column.dtype)
      except (TypeError, ValueError, OverflowError):
        raise UserError(
            f'{example["location"]}: the column {column.name!r} holds'
            f' {value!r}; expected {column.dtype}.'
        ) from None
    raise


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
  return [value for row in rows for value in row]


def _id(prefix: str, text: str) -> str:
  return text and prefix + hashlib.sha256(text.encode()).hexdigest()[:16]
