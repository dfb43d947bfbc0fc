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
  if {'source', 'options'} <= nearest.differs:  # It is of other data.
    return None
  half = ' (half built)' if nearest.is_half else ''
  return (
      f'No token cache fits: the nearest, {nearest.folder}{half}, differs in'
      f' {", ".join(sorted(nearest.differs))}.'
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
