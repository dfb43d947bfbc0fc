"""Other caches of a task and split: the nearest, and halves to remove."""

from collections.abc import Callable, Mapping
import contextlib
import glob
import json
import pathlib
import shutil
from typing import Any, NamedTuple

import filelock

from dualenc_jax.data.cache.build import BUILDING
from dualenc_jax.data.cache.format import HEADER
from dualenc_jax.data.cache.writer import JOURNAL

_UNSAFE = str.maketrans({c: '_' for c in '/\\:*?"<>| '})
# What caches of the same examples have in common, beside task and split.
_OF_EXAMPLES = {'module', 'options', 'source'}


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
    with contextlib.suppress(OSError, ValueError, AttributeError):
      header = json.loads(path.read_text('utf-8'))
      differs = {name for name in key if header.get(name) != key[name]}
      other = Other(path.parent, header, differs, path.name == JOURNAL)
      found.append((path.stat().st_mtime, other))
  found.sort(key=lambda pair: pair[0], reverse=True)
  return [other for _, other in found]


def explain(key: Mapping[str, Any], others: list[Other]) -> str | None:
  """In what the nearest of others is not the cache of a key, if it is near.

  None, too, where it is half of that cache.
  """
  nearest = min(others, key=lambda other: len(other.differs), default=None)
  if nearest is None or not nearest.differs:
    return None
  if {'source', 'options'} <= nearest.differs:
    return None  # It is of other data.
  old, new = (
      _flat({name: header.get(name) for name in sorted(nearest.differs)})
      for header in (nearest.header, key)
  )
  differences = ', '.join(
      f'{name} ({_short(old.get(name))}, now {_short(new.get(name))})'
      for name in old | new
      if old.get(name) != new.get(name)
  )
  half = ' (half built)' if nearest.is_half else ''
  return (
      f'No token cache fits: the nearest, {nearest.folder}{half}, differs in'
      f' {differences}.'
  )


def count(others: list[Other]) -> int | None:
  """How many examples there are, where a cache of the same ones exists."""
  for other in others:
    if not other.is_half and not other.differs & _OF_EXAMPLES:
      return other.header.get('examples')
  return None


def sweep(others: list[Other], log: Callable[[str], None]) -> None:
  """Removes halves that nobody can finish, since their source has changed."""
  for other in others:
    if other.is_half and other.differs == {'source'}:
      with contextlib.suppress(filelock.Timeout):
        with filelock.FileLock(f'{other.folder}.lock', blocking=False):
          shutil.rmtree(other.folder, ignore_errors=True)
          log(f'Removed {other.folder}, half of a cache of another source.')


def _flat(key: Mapping[str, Any]) -> dict[str, Any]:
  """A key with its options and columns one by one."""
  flat = {}
  for name, value in key.items():
    inner = value if isinstance(value, dict) else {'': value}
    flat |= {f'{name}.{n}'.strip('.'): v for n, v in inner.items()}
  return flat


def _short(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) < 50 else f'{text[:8]}...'
