"""Folders that appear when they are complete, whatever moment a kill picks."""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import shutil
import uuid

import filelock

from dualenc_jax.errors import UserError
from dualenc_jax.io import files


class GrowingFolder:
  """A folder that grows beside its place and is renamed when it is complete.

  An older folder in that place steps aside for the moment of the renaming, so
  that after any kill one complete folder is left. A process that finds half of
  a folder may go on with it.

  Attributes:
    folder: the complete folder.
    partial: the folder that grows.
    aside: the older folder, between the two renames of `complete`.
    lock_file: is locked while any of them is renamed or removed.
  """

  def __init__(
      self,
      folder: str | os.PathLike[str],
      partial: pathlib.Path | None = None,
  ):
    """Looks at nothing yet.

    Args:
      folder: the place; `~` is the home directory, and of a link it is what
        that points to.
      partial: the folder that grows, `folder` with '.partial' by default; on
        the same disk.
    """
    self.folder = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
    near = self.folder.with_name
    self.partial = partial or near(f'{self.folder.name}.partial')
    self.aside = near(f'{self.partial.name.removesuffix(".partial")}.replaced')
    self.lock_file = self.partial.with_name(f'{self.partial.name}.lock')

  @contextlib.contextmanager
  def locked(
      self, waiting: Callable[[], None] = lambda: None
  ) -> Iterator[None]:
    """Holds off other processes; the lock of a process dies with it.

    Args:
      waiting: called once where another process holds the lock.

    Raises:
      OSError: the lock cannot be made.
    """
    self.partial.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(self.lock_file)
    try:
      lock.acquire(blocking=False)
    except filelock.Timeout:
      waiting()
      lock.acquire()
    try:
      yield
    finally:
      lock.release()

  def readable(self) -> pathlib.Path:
    """The complete folder, if there is one."""
    if not self.folder.exists() and self.aside.exists():
      return self.aside  # Killed between the two renames of `complete`.
    return self.folder

  def restore(self) -> None:
    """Undoes half of `complete`, which a kill or an error has left."""
    if not self.aside.exists():
      return
    if self.folder.exists():
      shutil.rmtree(self.aside)
    else:
      self.aside.rename(self.folder)

  def complete(self) -> None:
    """Puts what has grown in its place, and removes what was there.

    Raises:
      OSError: the place cannot be written; what was there is there again.
    """
    if self.folder.exists():
      self.folder.rename(self.aside)
    try:
      self.partial.rename(self.folder)
    finally:
      self.restore()


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str],
    instead: str = 'another folder',
    marker: str | None = None,
) -> Iterator[pathlib.Path]:
  """Yields an empty folder beside `path`, which takes its place at the end.

  After an error in the block nothing of it is left, and what was there still
  is.

  Args:
    path: a new or empty folder, or one to replace.
    instead: as for `files.writing`.
    marker: a file; a folder that holds it is replaced.

  Raises:
    UserError: there is something that is not to be replaced, or the folder
      cannot be written.
  """
  growing = GrowingFolder(path)
  folder = growing.folder
  is_full = folder.is_file() or folder.is_dir() and any(folder.iterdir())
  if is_full and not (marker and (folder / marker).is_file()):
    only = f' Only a folder with {marker} is replaced.' if marker else ''
    raise UserError(
        f'{path} is there, and is left as it is.{only} Give {instead}.'
    )
  # Unlike a process id it never comes again.
  unique = f'.{folder.name}.{uuid.uuid4().hex[:12]}.partial'
  growing = GrowingFolder(path, folder.with_name(unique))
  try:
    with files.writing(path, instead):
      growing.partial.mkdir(parents=True)
    yield growing.partial
    with files.writing(path, instead):
      growing.complete()
  finally:
    shutil.rmtree(growing.partial, ignore_errors=True)
