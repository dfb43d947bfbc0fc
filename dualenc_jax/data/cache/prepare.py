"""Finds, builds and reuses token caches."""

from collections.abc import Callable, Mapping
import contextlib
import glob
import hashlib
import json
import logging
import os
import pathlib
import shutil
from typing import Any, NamedTuple

import filelock

from dualenc_jax.data import columns
from dualenc_jax.data.cache.build import BUILDING, CacheBuild
from dualenc_jax.data.cache.format import (
  Cache,
  DamagedCache,
  HEADER,
  JOURNAL,
  read_header,
)
from dualenc_jax.data.dataset import Dataset
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.text.tokenizer import Tokenizer

__all__ = ['Cache', 'prepare']

FORMAT = 5
_UNSAFE = str.maketrans({c: '_' for c in '/\\:*?"<>| '})
# What caches of the same examples have in common, beside task and split.
_OF_EXAMPLES = {'module', 'options', 'source'}


def prepare(
    task: Dataset, split: str, tokenizer: Tokenizer,
    cache_dir: str | os.PathLike,
    log: Callable[[str], None] = logging.getLogger(__name__).info,
    threads: int = -1,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Cache:
  """The token cache of a task's split, built if there is none yet.

  It is keyed by the task with its options, the split, the columns, the
  vocabulary's content, both lengths and the fingerprint of the source. It is
  `<cache_dir>/<task>-<split>-<16 hex digits of the key>`. Any number of
  processes may prepare it at once: one builds it, the others wait. A process
  that goes on where another was killed makes the same files.

  Where the source or seqio is not there, the newest cache that agrees in all
  but the source serves, and the log says that the source was not checked.

  Args:
    task: what to read.
    split: one of the task's splits.
    tokenizer: vocabulary and lengths.
    cache_dir: folder of all caches; made if need be.
    log: receives a line when a cache is built, rebuilt, waited for or taken
      unchecked.
    threads: that tokenise, -1 for one on each core.
    progress: called while a cache is built, with how many examples are done,
      and about how many there are, None where that is not known.

  Returns:
    The opened cache.

  Raises:
    UserError: bad data, no examples, a folder that cannot be written or has no
      room, or seqio is needed and missing.
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
    table = columns.kept(task, split)
    key['columns'] = {column.name: column.form for column in table}
    key['source'] = task.fingerprint(split)
    text = json.dumps(key, sort_keys=True).encode()
    name = _prefix(key) + hashlib.sha256(text).hexdigest()[:16]
    build = CacheBuild(
        cache_dir, name, key, task, table, tokenizer, threads, log, progress
    )
    return _complete(build.folder) or _build(build)
  except SourceUnavailable as error:
    return _unchecked(cache_dir, key, error, log)


def _complete(folder: pathlib.Path) -> Cache | None:
  try:
    return Cache.open(folder)
  except DamagedCache:
    return None


def _build(build: CacheBuild) -> Cache:
  """Builds a cache, unless another process is quicker."""
  with build.locked():
    others = _find(build.cache_dir, build.key)
    if build.folder.exists():
      try:
        return Cache.open(build.folder)
      except DamagedCache as damage:
        build.log(f'Rebuilding a damaged token cache: {damage}.')
        shutil.rmtree(build.folder)
    elif reason := _explain(others):
      build.log(reason)
    _sweep(others, build.log)
    build.run(_count(others))
  return Cache.open(build.folder)


def _unchecked(
    cache_dir: pathlib.Path, key: dict[str, Any], error: SourceUnavailable,
    log: Callable[[str], None],
) -> Cache:
  """The newest complete cache whose key agrees in all but the source."""
  for other in _find(cache_dir, key):
    if other.is_half or other.differs - {'source'}:
      continue
    if cache := _complete(other.folder):
      log(
          f'Using the token cache {cache.folder} without checking that its'
          f' source is unchanged: {error}'
      )
      return cache
  raise UserError(
      f'{error} Or prepare the token cache on a machine that can, and copy'
      f' it to {cache_dir}: there is none here for task {key["task"]!r}, split'
      f' {key["split"]!r} with this vocabulary and these lengths.'
  ) from error


class Other(NamedTuple):
  """A cache of a task and split, or half of one.

  Attributes:
    folder: where it is.
    header: its header, or journal.
    differs: names of the parts of the wanted key in which it differs.
    is_half: whether it is being built, or was by a process that was killed.
  """

  folder: pathlib.Path
  header: Mapping[str, Any]
  differs: set[str]
  is_half: bool


def _prefix(key: Mapping[str, Any]) -> str:
  """What the folders of all caches of a task and split begin with."""
  return f'{key["task"]}-{key["split"]}-'.translate(_UNSAFE)


def _find(cache_dir: pathlib.Path, key: Mapping[str, Any]) -> list[Other]:
  """Caches and halves of the task and split of a key, the newest first."""
  start = glob.escape(_prefix(key))
  found = []
  for path in [
      *cache_dir.glob(f'{start}*/{HEADER}'),
      *(cache_dir / BUILDING).glob(f'{start}*/{JOURNAL}'),
  ]:
    with contextlib.suppress(OSError, UserError):
      header = read_header(path)
      differs = {name for name in key if header.get(name) != key[name]}
      other = Other(path.parent, header, differs, path.name == JOURNAL)
      found.append((path.stat().st_mtime, other))
  found.sort(key=lambda pair: pair[0], reverse=True)
  return [other for _, other in found]


def _explain(others: list[Other]) -> str | None:
  """In what the nearest of others is not the wanted cache, if it is near.

  None, too, where it is half of that cache.
  """
  nearest = min(others, key=lambda other: len(other.differs), default=None)
  if nearest is None or not nearest.differs:
    return None
  if {'source', 'options'} <= nearest.differs:  # It is of other data.
    return None
  half = ' (half built)' if nearest.is_half else ''
  return (
      f'No token cache fits: the nearest, {nearest.folder}{half}, differs in'
      f' {", ".join(sorted(nearest.differs))}.'
  )


def _count(others: list[Other]) -> int | None:
  """How many examples there are, where a cache of the same ones exists."""
  for other in others:
    if not other.is_half and not other.differs & _OF_EXAMPLES:
      return other.header.get('examples')
  return None


def _sweep(others: list[Other], log: Callable[[str], None]) -> None:
  """Removes halves that nobody can finish, since their source has changed."""
  for other in others:
    if other.is_half and other.differs == {'source'}:
      with contextlib.suppress(filelock.Timeout):
        with filelock.FileLock(f'{other.folder}.lock', blocking=False):
          shutil.rmtree(other.folder, ignore_errors=True)
          log(f'Removed {other.folder}, half of a cache of another source.')
