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
from typing import Any

from dualenc_jax.data import columns
from dualenc_jax.data.cache.build import CacheBuild
from dualenc_jax.data.cache.format import Cache, DamagedCache, HEADER
from dualenc_jax.data.dataset import Dataset
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.text.tokenizer import Tokenizer

FORMAT = 5
_UNSAFE = str.maketrans({c: '_' for c in '/\\:*?"<>| '})


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

  Where the source or seqio is missing, the newest cache that agrees in all but
  the source serves, and the log says that the source was not checked.

  `threads` tokenise, -1 for one on each core; `progress` is called with how
  many examples are done, and about how many there are, None if not known.

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
    with contextlib.suppress(DamagedCache):
      return Cache.open(build.folder)
    with build.locked():
      if build.folder.exists():
        try:
          return Cache.open(build.folder)  # Another process was quicker.
        except DamagedCache as damage:
          log(f'Rebuilding a damaged token cache: {damage}.')
          shutil.rmtree(build.folder)
      build.run()
    return Cache.open(build.folder)
  except SourceUnavailable as error:
    return _unchecked(cache_dir, key, error, log)


def _unchecked(
    cache_dir: pathlib.Path, key: dict[str, Any], error: SourceUnavailable,
    log: Callable[[str], None],
) -> Cache:
  """The newest complete cache whose key agrees in all but the source."""
  found = cache_dir.glob(f'{glob.escape(_prefix(key))}*/{HEADER}')
  for path in sorted(found, key=os.path.getmtime, reverse=True):
    with contextlib.suppress(DamagedCache):
      cache = Cache.open(path.parent)
      header = {**cache.header, 'source': key.get('source')}
      if all(header.get(name) == value for name, value in key.items()):
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


def _prefix(key: Mapping[str, Any]) -> str:
  """What the folders of all caches of a task and split begin with."""
  return f'{key["task"]}-{key["split"]}-'.translate(_UNSAFE)
