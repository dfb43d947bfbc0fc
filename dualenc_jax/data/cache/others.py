"""Other caches of a task and split: what they tell, and what is left over."""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import glob
import json
import pathlib
import shutil
import string
from typing import Any

import filelock

from dualenc_jax.data.cache.build import BUILDING
from dualenc_jax.data.cache.format import HEADER
from dualenc_jax.data.cache.writer import JOURNAL

_UNSAFE = str.maketrans({c: '_' for c in '/\\:*?"<>| '})
# What a cache of the same examples may differ in.
_OF_TOKENS = {
    'format',
    'vocabulary',
    'vocabulary_size',
    'query_length',
    'passage_length',
    'query_prefix',
    'passage_prefix',
}
# What half of a cache may differ in that nobody can finish.
_GONE = {'format', 'source'}


@dataclasses.dataclass(frozen=True)
class Other:
  """A cache, or half of one.

  Attributes:
    folder: where it is.
    header: what it says about itself.
    differs: names of the parts of the wanted key in which it differs.
  """

  folder: pathlib.Path
  header: Mapping[str, Any]
  differs: frozenset[str]

  @property
  def is_half(self) -> bool:
    """It is being built, or was by a process that is no more."""
    return self.folder.parent.name == BUILDING


def prefix(key: Mapping[str, Any]) -> str:
  """What the folders of all caches of a task and split begin with."""
  return f'{key["task"]}-{key["split"]}-'.translate(_UNSAFE)


def find(cache_dir: pathlib.Path, key: Mapping[str, Any]) -> list[Other]:
  """Caches and halves of the task and split of a key, the newest first."""
  start = glob.escape(prefix(key))
  found = []
  for path in [
      *cache_dir.glob(f'{start}*/{HEADER}'),
      *(cache_dir / BUILDING).glob(f'{start}*/{JOURNAL}'),
  ]:
    try:
      time = path.stat().st_mtime
      header = json.loads(path.read_text('utf-8'))
      differs = {n for n, value in key.items() if header.get(n) != value}
    except (OSError, ValueError, AttributeError):
      continue  # Damaged, or just moved.
    found.append((time, Other(path.parent, header, frozenset(differs))))
  found.sort(key=lambda pair: pair[0], reverse=True)
  return [other for _, other in found]


def explain(key: Mapping[str, Any], others: list[Other]) -> str | None:
  """In what the nearest of others is not the cache of a key, if there is one.

  None, too, where one is half of that cache.
  """
  if not others or any(not other.differs for other in others):
    return None
  nearest = min(others, key=lambda other: len(other.differs))
  if {'source', 'options'} <= nearest.differs:
    return None  # It is of other data.
  old, new = _flat(nearest.header), _flat(key)
  names = [
      name
      for name in sorted(old.keys() | new.keys())
      if name.partition('.')[0] in nearest.differs
      and old.get(name) != new.get(name)
  ]
  differences = ', '.join(
      f'{name} ({_short(old.get(name))}, now {_short(new.get(name))})'
      for name in names
  )
  half = ' (half built)' if nearest.is_half else ''
  return (
      f'No token cache fits: the nearest, {nearest.folder}{half}, differs in'
      f' {differences}.'
  )


def count(others: list[Other]) -> int | None:
  """How many examples there are, where a cache of the same ones tells it."""
  for other in others:
    if not other.is_half and other.differs <= _OF_TOKENS:
      return other.header.get('examples')
  return None


def sweep(
    cache_dir: pathlib.Path, others: list[Other], log: Callable[[str], None]
) -> None:
  """Removes what nobody can finish, and says so.

  These are halves of caches whose source has changed or that another version
  began, and the `.building-*` of versions that had no `BUILDING`.
  """
  for folder in sorted(cache_dir.glob(f'{BUILDING}-*')):
    _remove(folder, log)
  for other in others:
    if other.is_half and other.differs and other.differs <= _GONE:
      lock = filelock.FileLock(f'{other.folder}.lock')
      with contextlib.suppress(filelock.Timeout):
        with lock.acquire(blocking=False):
          _remove(other.folder, log)


def _remove(folder: pathlib.Path, log: Callable[[str], None]) -> None:
  shutil.rmtree(folder, ignore_errors=True)
  log(f'Removed {folder}, half of a token cache that cannot be finished.')


def _flat(key: Mapping[str, Any]) -> dict[str, Any]:
  """A key with its options one by one."""
  options = key.get('options') or {}
  return {k: v for k, v in key.items() if k != 'options'} | {
      f'options.{name}': value for name, value in options.items()
  }


def _short(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  is_digest = len(text) == 64 and set(text) <= set(string.hexdigits)
  return f'{text[:8]}...' if is_digest else text
