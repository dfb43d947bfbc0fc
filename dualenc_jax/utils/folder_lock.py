"""A lock on a folder: one process at a time writes to it."""

from collections.abc import Iterator
import contextlib
import datetime
import logging
import os
import pathlib
import socket

import filelock

from dualenc_jax.utils import files, untrusted
from dualenc_jax.utils.errors import UserError

_LOCK, _OWNER = '.lock', '.writer'
_LONGEST = 1000  # Bytes of the description of an owner.
_LOG = logging.getLogger(__name__)


class FolderLock:
  """The lock that this process holds on a folder."""

  def __init__(self, folder: pathlib.Path):
    """Describes the process; `take` writes this into the folder."""
    self._folder = folder
    # Containers may be alike in all but the time.
    now = datetime.datetime.now().astimezone().isoformat(' ')
    host = socket.gethostname()
    self._owner = f'process {os.getpid()} on {host}, since {now}'

  def take(self) -> None:
    """Makes this process the owner of the folder."""
    files.write(self._folder / _OWNER, self._owner)

  def check(self) -> None:
    """Raises UserError if the folder is gone or has another owner."""
    try:
      owner = _read_owner(self._folder)
    except (FileNotFoundError, NotADirectoryError):
      problem = f'{self._folder} is gone: removed, moved or unmounted.'
    except OSError:
      return  # A server that is away for a moment.
    else:
      if owner == self._owner:
        return
      problem = f'{self._folder} has another writer: {owner}.'
    raise UserError(
        f'{problem} The run has stopped. Put the folder back, or run the same'
        ' command again to start from what is there.'
    )

  def release(self) -> None:
    """Removes the owner from the folder, unless it is another one."""
    with contextlib.suppress(OSError):
      if _read_owner(self._folder) == self._owner:
        (self._folder / _OWNER).unlink()


@contextlib.contextmanager
def lock_folder(
    folder: pathlib.Path, activity: str, instead: str
) -> Iterator[FolderLock]:
  """Keeps other processes out of a folder, which is made if it is missing.

  The system's lock ends with its process. Some mounted buckets have no locks:
  there the last process has the folder, and `FolderLock.check` stops others.

  Args:
    folder: the folder to lock.
    activity: what the process does there: 'trains'.
    instead: what the user may give in its place: 'another --output_dir'.

  Raises:
    UserError: another process holds the lock; the message describes it.
  """
  files.make_folder(folder, instead)
  with _locked(folder, activity, instead):
    try:
      if owner := lock_owner(folder):
        _LOG.warning('%s: %s was killed; going on.', folder, owner)
      lock = FolderLock(folder)
      lock.take()
      try:
        yield lock
      finally:
        lock.release()
    finally:
      with contextlib.suppress(OSError):
        if os.listdir(folder) == [_LOCK]:
          os.unlink(folder / _LOCK)


def check_free(folder: pathlib.Path, activity: str, instead: str) -> None:
  """Raises UserError if another process has locked the folder, if it exists."""
  if (folder / _LOCK).exists():
    with _locked(folder, activity, instead):
      pass


def lock_owner(folder: pathlib.Path) -> str:
  """The process that writes to a folder; '' if none or not known."""
  try:
    return _read_owner(folder)
  except OSError:
    return ''


@contextlib.contextmanager
def _locked(
    folder: pathlib.Path, activity: str, instead: str
) -> Iterator[None]:
  # The library's own stand-in for locks would outlive a killed process.
  lock = filelock.FileLock(folder / _LOCK, fallback_to_soft=False)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    owner = lock_owner(folder) or 'it is not known which'
    raise UserError(
        f'Another process {activity} in {folder}: {owner}. Wait for it, or give'
        f' {instead}.'
    ) from None
  except OSError as e:
    _LOG.warning('%s cannot be locked: %s', folder, e)
  try:
    yield
  finally:
    lock.release()


def _read_owner(folder: pathlib.Path) -> str:
  """The description of a folder's owner; raises OSError if there is none."""
  try:
    content = untrusted.read(folder / _OWNER, _LONGEST)
  except UserError as e:
    return str(e)
  return untrusted.escape_controls(content.decode('utf-8', 'replace'))
