"""Files and folders that appear whole or not at all."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import errno
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any, IO
import uuid

import filelock

from dualenc_jax.utils.errors import UserError

# Folders that `make_folder` has made in this process.
_made: list[pathlib.Path] = []


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], instead: str = 'another folder'
) -> Iterator[None]:
  """Raises UserError for any OSError of a block that writes `path`.

  `instead` is what the user may give in its place: 'another --output_dir'.
  """
  try:
    yield
  except OSError as e:
    is_full = e.errno in (errno.ENOSPC, errno.EDQUOT)
    raise UserError(
        f'{path} cannot be written: {e.strerror or e}.'
        f' {"Make room there, or give" if is_full else "Give"} {instead}.'
    ) from e


@contextlib.contextmanager
def replacing(path: pathlib.Path, sync: bool = False) -> Iterator[IO[bytes]]:
  """Yields a new binary file, which replaces `path` when the block succeeds.

  It grows next to `path` and is removed after an error. With `sync` the content
  is on the disk before the file appears, so that a loss of power cannot leave
  half of it.
  """
  partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
  try:
    with partial.open('wb') as file:
      yield file
      if sync:
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()


def write(
    path: pathlib.Path, content: str | bytes, instead: str = 'another folder',
    sync: bool = False,
) -> None:
  """Writes a file, text in UTF-8, as `writing` and `replacing`.

  Raises:
    UserError: the file cannot be written, or the text has half a surrogate
      pair, which UTF-8 has no bytes for.
  """
  if isinstance(content, str):
    try:
      content = content.encode('utf-8')
    except UnicodeEncodeError as e:
      near = content[max(e.start - 30, 0) : e.end + 30]
      raise UserError(
          f'{path} cannot be written: its text has half a surrogate pair, in'
          f' {near!r}. Repair the source of the text.'
      ) from e
  with writing(path, instead), replacing(path, sync) as file:
    file.write(content)


def write_json_lines(
    path: pathlib.Path, rows: Iterable[Mapping[str, Any]]
) -> None:
  """Writes an object a line; the file appears whole."""
  with writing(path, 'another --output_dir'), replacing(path) as file:
    for row in rows:
      file.write((json.dumps(row, ensure_ascii=False) + '\n').encode())


def write_json(path: pathlib.Path, value: Any, sync: bool = False) -> None:
  """`write` of a value as indented JSON."""
  write(path, json.dumps(value, indent=2) + '\n', sync=sync)


def make_folder(folder: pathlib.Path, instead: str = 'another folder') -> None:
  """Makes a folder; UserError where it, or a file in it, cannot be made."""
  own = folder.absolute()
  with writing(folder, instead):
    _made.extend(each for each in (own, *own.parents) if not each.exists())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass


@contextlib.contextmanager
def removing_empty_folders() -> Iterator[None]:
  """Removes at the end what `make_folder` has made and nothing has filled."""
  try:
    yield
  finally:
    for folder in sorted(_made, reverse=True):  # Inner ones first.
      with contextlib.suppress(OSError):
        folder.rmdir()
    _made.clear()


def default_cache_dir() -> pathlib.Path:
  """`$DUALENC_CACHE`, or `dualenc_jax` in the user's cache folder."""
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(
      os.environ.get('DUALENC_CACHE') or pathlib.Path(base) / 'dualenc_jax'
  )


def format_size(size: float) -> str:
  """'1.23 GB', or '45.6 MB' below one."""
  if size < 1e9:
    return f'{size / 1e6:,.1f} MB'
  return f'{size / 1e9:,.2f} GB'


class GrowingFolder:
  """A folder that grows next to its place and is renamed when complete.

  After a kill one complete folder is left, and another process may continue
  with a part.

  Attributes:
    folder: the complete folder.
    partial: the one that grows.
    aside: an older complete one, between the two renames of `complete`.
    lock_file: is locked while any of them is renamed or removed.
  """

  def __init__(
      self, folder: str | os.PathLike[str], partial: pathlib.Path | None = None
  ):
    """Reads nothing from the disk yet.

    Args:
      folder: the place, or a link to it; `~` is the home directory.
      partial: on the same disk; `folder` with '.partial' by default.
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

    `waiting` is called once where another process holds it. Raises OSError.
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
    """The complete folder, if one exists."""
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

    After an OSError what was there is there again.
    """
    if self.folder.exists():
      self.folder.rename(self.aside)
    try:
      self.partial.rename(self.folder)
    finally:
      self.restore()


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str], instead: str = 'another folder',
    marker: str | None = None,
) -> Iterator[pathlib.Path]:
  """Yields an empty folder next to `path`, which takes its place at the end.

  After an error in the block nothing of it is left, and what was there still
  is: only a folder that is empty, or holds the file `marker`, is replaced.

  Raises:
    UserError: something else is there, or the folder cannot be written.
  """
  growing = GrowingFolder(path)
  folder = growing.folder
  is_full = folder.is_file() or folder.is_dir() and any(folder.iterdir())
  if is_full and not (marker and (folder / marker).is_file()):
    only = f' Only a folder with {marker} is replaced.' if marker else ''
    raise UserError(
        f'{path} exists, and is left as it is.{only} Give {instead}.'
    )
  # Unlike a process id it never comes again.
  unique = f'.{folder.name}.{uuid.uuid4().hex[:12]}.partial'
  growing = GrowingFolder(path, folder.with_name(unique))
  try:
    with writing(path, instead):
      growing.partial.mkdir(parents=True)
    yield growing.partial
    with writing(path, instead):
      growing.complete()
  finally:
    shutil.rmtree(growing.partial, ignore_errors=True)
