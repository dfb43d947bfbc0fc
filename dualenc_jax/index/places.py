"""Where an index is, where it grows, and where an older one steps aside."""

import os
import pathlib
import re
import shutil

from dualenc_jax.errors import UserError
from dualenc_jax.index import shard as shard_lib
from dualenc_jax.index.header import FILE

_OF_INDEX = re.compile(
    rf'{re.escape(FILE)}|\.{re.escape(FILE)}\.\d+\.partial'
    r'|shard-\d{5,}(\.partial|\.lock)?'
)
_OF_SHARD = {*shard_lib.FILES, shard_lib.INFO}


class Places:
  """The folders of one index.

  A new index grows in `FOLDER.partial`, from which it is renamed when it is
  complete. An index that is there steps aside to `FOLDER.replaced` for that
  moment, so whatever moment a kill picks, a complete index is left.

  Attributes:
    folder: of the complete index.
    partial: of the one that grows.
    aside: of the one that is replaced.
    lock: a file that is locked while any of them is renamed or removed.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    # A link is followed: what it points to is renamed and removed.
    self.folder = pathlib.Path(os.path.realpath(folder))
    self.partial = self.folder.with_name(f'{self.folder.name}.partial')
    self.aside = self.folder.with_name(f'{self.folder.name}.replaced')
    self.lock = self.folder.with_name(f'.{self.folder.name}.lock')

  def readable(self) -> pathlib.Path:
    """The folder of the complete index, if there is one."""
    if not self.folder.exists() and self.aside.exists():
      return self.aside  # Killed between the two renames of `complete`.
    return self.folder

  def shards(self) -> list[int]:
    """Numbers of the shards that are there of the index that grows."""
    found = self.partial.glob('shard-*')
    numbers = [path.name.removeprefix('shard-') for path in found]
    return sorted(int(number) for number in numbers if number.isdecimal())

  def restore(self) -> None:
    """Undoes half of `complete`."""
    if not self.aside.exists():
      return
    if self.folder.exists():
      shutil.rmtree(self.aside)
    else:
      self.aside.rename(self.folder)

  def complete(self) -> None:
    """Puts the index that has grown in its place."""
    for path in self.partial.glob('*.lock'):
      path.unlink(missing_ok=True)
    if self.folder.exists():
      self.folder.rename(self.aside)
    self.partial.rename(self.folder)
    if self.aside.exists():
      shutil.rmtree(self.aside)

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
