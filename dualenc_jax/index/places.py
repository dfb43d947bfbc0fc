"""Where an index is, where it grows, and where an older one steps aside."""

import os
import pathlib
import re

from dualenc_jax.errors import UserError
from dualenc_jax.index import shard as shard_lib
from dualenc_jax.index.header import FILE
from dualenc_jax.io import growing_folder

_OF_INDEX = re.compile(
    rf'{re.escape(FILE)}|\.{re.escape(FILE)}\.\d+\.partial'
    r'|shard-\d{5,}(\.partial|\.lock)?'
)
_OF_SHARD = {*shard_lib.FILES, shard_lib.INFO}


class Places(growing_folder.GrowingFolder):
  """The folders of one index."""

  def shards(self) -> list[int]:
    """Numbers of the shards that are there of the index that grows."""
    found = self.partial.glob('shard-*')
    numbers = [path.name.removeprefix('shard-') for path in found]
    return sorted(int(number) for number in numbers if number.isdecimal())

  def check_own(self) -> None:
    """Raises UserError where a folder holds anything but an index.

    Such a folder is never renamed, removed or written to.
    """
    for path in (self.folder, self.partial, self.aside):
      stranger = _stranger(path)
      if stranger is not None:
        raise UserError(
            f'{path} is not an index: it holds {stranger!r}. Expected a new'
            ' folder or an older index. Choose another folder.'
        )


def _stranger(path: pathlib.Path) -> str | None:
  """The name of something in a folder that is not of an index."""
  if not path.exists():
    return None
  if not path.is_dir():
    return path.name
  for name in sorted(os.listdir(path)):
    if not _OF_INDEX.fullmatch(name):
      return name
    if (path / name).is_dir():
      for file in sorted(os.listdir(path / name)):
        if file not in _OF_SHARD:
          return f'{name}/{file}'
  return None
