"""A lock on a folder: one process at a time writes to it."""

from collections.abc import Iterator
import contextlib
import dataclasses
import datetime
import logging
import os
import pathlib
import socket

import filelock

from dualenc_jax.utils import files, untrusted
from dualenc_jax.utils.errors import UserError

_LOCK, _OWNER = '.lock', '.writer'
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FolderLock:
  """The lock that this process, described by `owner`, holds on a folder."""

  folder: pathlib.Path
  owner: str

  def check(self) -> None:
    """Raises UserError if the folder is gone or has another owner."""
    try:
      owner = _read_owner(self.folder)
    except (FileNotFoundError, NotADirectoryError):
      problem = f'{self.folder} is gone: removed, moved or unmounted.'
    except OSError:
      return  # A server that is away for a moment.
    else:
      if owner == self.owner:
        return
      problem = f'{self.folder} has another writer: {owner}.'
    raise UserError(
        f'{problem} The run has stopped. Put the folder back, or run the same'
        ' command again to start from what is there.'
    )


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
  # Containers may be alike in all but the time.
  now = datetime.datetime.now().astimezone().isoformat(' ')
  owner = f'process {os.getpid()} on {socket.gethostname()}, since {now}'
  with _locked(folder, activity, instead):
    with contextlib.suppress(OSError):
      _LOG.warning('%s: %s was killed; going on.', folder, _read_owner(folder))
    files.write(folder / _OWNER, owner)
    try:
      yield FolderLock(folder, owner)
    finally:
      with contextlib.suppress(OSError):
        if _read_owner(folder) == owner:
          (folder / _OWNER).unlink()
        if os.listdir(folder) == [_LOCK]:
          os.unlink(folder / _LOCK)


def check_free(folder: pathlib.Path, activity: str, instead: str) -> None:
  """Raises UserError if another process has locked the folder, if it exists."""
  if (folder / _LOCK).exists():
    with _locked(folder, activity, instead):
      pass


@contextlib.contextmanager
def _locked(
    folder: pathlib.Path, activity: str, instead: str
) -> Iterator[None]:
  # The library's own stand-in for locks would outlive a killed process.
  lock = filelock.FileLock(folder / _LOCK, fallback_to_soft=False)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    owner = 'it is not known which'
    with contextlib.suppress(OSError):
      owner = _read_owner(folder)
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
  content = (folder / _OWNER).read_text(errors='replace')
  return untrusted.escape_controls(content)
