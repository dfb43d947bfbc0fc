"""Finds, builds and reuses token caches."""

from collections.abc import Callable
import hashlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
from typing import Any

from dualenc_jax.data.cache_format import Cache
from dualenc_jax.data.cache_format import DamagedCache
from dualenc_jax.data.cache_format import HEADER
from dualenc_jax.data.cache_format import write
from dualenc_jax.data.task import Task
from dualenc_jax.data.tokenizer import Tokenizer
from dualenc_jax.errors import SourceUnavailable
from dualenc_jax.errors import UserError

__all__ = ['Cache', 'prepare']

FORMAT = 2
_UNSAFE = str.maketrans({c: '_' for c in '/\\:*?"<>| '})


def prepare(
    task: Task,
    split: str,
    tokenizer: Tokenizer,
    cache_dir: str | os.PathLike,
    log: Callable[[str], None] = logging.getLogger(__name__).info,
) -> Cache:
  """The token cache of a task's split, built if there is none yet.

  It is keyed by the task with its options, the split, the vocabulary's
  content, both lengths and the fingerprint of the source, and lies in
  `<cache_dir>/<task>-<split>-<16 hex digits of the key>`. It is built in a
  temporary folder and moved into place when complete, so that any number of
  processes may prepare it at once.

  Where the source or seqio is not there, the newest cache that agrees in all
  but the source serves, and the log says that the source was not checked.

  Args:
    task: what to read.
    split: one of the task's splits.
    tokenizer: vocabulary and lengths.
    cache_dir: folder of all caches; made if need be.
    log: receives a line when a cache is built, rebuilt or taken unchecked.

  Returns:
    The opened cache.

  Raises:
    UserError: bad data, no examples, a folder that cannot be written, or seqio
      is needed and missing.
  """
  cache_dir = pathlib.Path(cache_dir).expanduser()
  key = {
      'format': FORMAT,
      'task': task.name,
      'module': task.module,
      'options': dict(task.options),
      'split': split,
      'vocabulary': tokenizer.vocabulary.sha256,
      'vocabulary_size': tokenizer.vocabulary.size,
      'query_length': tokenizer.query_length,
      'passage_length': tokenizer.passage_length,
  }
  # Written and read again, so that tuples compare equal to a header's lists.
  key = json.loads(json.dumps(key, default=str))
  try:
    key['source'] = task.fingerprint(split)
    return _find(cache_dir, key, log) or _build(
        task, split, tokenizer, cache_dir, key, log
    )
  except SourceUnavailable as error:
    return _unchecked(cache_dir, key, error, log)


def _folder(cache_dir: pathlib.Path, key: dict[str, Any]) -> pathlib.Path:
  digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
  name = f'{key["task"]}-{key["split"]}-{digest[:16]}'
  return cache_dir / name.translate(_UNSAFE)


def _find(
    cache_dir: pathlib.Path, key: dict[str, Any], log: Callable[[str], None]
) -> Cache | None:
  folder = _folder(cache_dir, key)
  if not folder.exists():
    return None
  try:
    return Cache.open(folder)
  except DamagedCache as damage:
    log(f'Rebuilding a damaged token cache: {damage}.')
    return None


def _build(
    task: Task,
    split: str,
    tokenizer: Tokenizer,
    cache_dir: pathlib.Path,
    key: dict[str, Any],
    log: Callable[[str], None],
) -> Cache:
  folder = _folder(cache_dir, key)
  log(f'Tokenising task {task.name!r}, split {split!r}, into {folder}.')
  try:
    cache_dir.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix='.building-', dir=cache_dir))
    work.chmod(0o755)  # Others may read it, as they may any new folder.
    try:
      count = write(work, task.examples(split), tokenizer, key)
      if not count:
        raise UserError(
            f'Task {task.name!r} has no examples in split {split!r}. Options:'
            f' {dict(task.options)}.'
        )
      _move(work, folder)
    finally:
      shutil.rmtree(work, ignore_errors=True)
  except OSError as error:
    raise UserError(
        f'The token cache {folder} cannot be written: {error}. Give another'
        ' cache_dir, or make room.'
    ) from error
  log(f'Tokenised {count:,} examples.')
  return Cache.open(folder)


def _move(work: pathlib.Path, folder: pathlib.Path) -> None:
  """Moves a complete cache into place, unless another process was first."""
  try:
    os.replace(work, folder)
  except OSError:
    try:
      Cache.open(folder)
    except DamagedCache:
      shutil.rmtree(folder)
      os.replace(work, folder)


def _unchecked(
    cache_dir: pathlib.Path,
    key: dict[str, Any],
    error: SourceUnavailable,
    log: Callable[[str], None],
) -> Cache:
  """The newest complete cache whose key agrees in all but the source."""
  headers = cache_dir.glob(f'*/{HEADER}')
  for path in sorted(headers, key=os.path.getmtime, reverse=True):
    # The name of a temporary folder starts with a dot.
    if path.parent.name.startswith('.'):
      continue
    try:
      cache = Cache.open(path.parent)
    except DamagedCache:
      continue
    if all(cache.header.get(k) == v for k, v in key.items() if k != 'source'):
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
