"""A lock on a folder: one writer at a time, which is named."""

from collections.abc import Iterator
import contextlib
import datetime
import json
import logging
import os
import pathlib
import socket
import time
from typing import Any

import filelock

from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

_LOCK, _RECORD = '.lock', '.writer.json'
# For so long a folder may fail to be read.
_AWAY_SECONDS = 60.0
# Bytes of a record.
_LARGEST = 2**16
_FIELDS = {'pid': int, 'host': str, 'since': str}
_LOG = logging.getLogger(__name__)


class Lost(UserError):
  """A folder no longer belongs to its writer."""


class Writer:
  """This process, the one that writes to a folder."""

  def __init__(self, folder: pathlib.Path, does: str):
    """Looks at nothing yet; `does` is what the process does: 'trains'."""
    self._folder, self._path = folder, folder / _RECORD
    self._content = json.dumps({
        'does': does,
        'host': socket.gethostname(),
        'pid': os.getpid(),
        'since': datetime.datetime.now().astimezone().isoformat(
            ' ', 'milliseconds'  # Containers may be alike in all else.
        ),
    }).encode()
    self._seen = time.monotonic()

  def check(self, when: str = '') -> None:
    """Raises Lost unless the folder exists and is still this writer's.

    `when` is for the message: ' at step 3'.
    """
    now = time.monotonic()
    try:
      content = untrusted.read(self._path, _LARGEST)
    except UserError:
      content = b''
    except (FileNotFoundError, NotADirectoryError):
      content = None
    except OSError:
      # A server that is away for a moment ends no run.
      if now - self._seen < _AWAY_SECONDS:
        return
      content = None
    if content == self._content:
      self._seen = now
      return
    if not os.path.exists(self._folder):
      problem = f'{self._folder} is gone{when}: removed, moved or unmounted.'
    elif content is None:
      problem = f'{self._path} is gone{when}: its folder was moved or emptied.'
    else:
      by = who(self._folder) or f'{self._path} is not that of this process'
      problem = f'{self._folder} has another writer{when}: {by}.'
    raise Lost(
        f'{problem} The run has stopped. Put the folder back, or run the same'
        ' command again to start from what is there.'
    )

  def take(self) -> None:
    """Records in the folder who writes there from now on."""
    with files.writing(self._path):
      # Half a record, after a power cut, would be in the way of the next run.
      with files.replacing(self._path, sync=True) as file:
        file.write(self._content)

  def leave(self) -> None:
    """Removes that again."""
    with contextlib.suppress(OSError, UserError):
      if untrusted.read(self._path, _LARGEST) == self._content:
        self._path.unlink()


@contextlib.contextmanager
def alone(folder: pathlib.Path, does: str, instead: str) -> Iterator[Writer]:
  """Keeps other processes out of a folder, which is made if it is missing.

  The system's lock does so, which ends with its process, on one machine and
  where a file system passes locks on to its server. Elsewhere, as on some
  mounted buckets, the last that comes has the folder, and `Writer.check` tells
  the one before.

  `does` is what the process does there: 'trains', `instead` what the user may
  give in its place.

  Raises:
    UserError: another process does it; which, and since when. Or what the last
      one has left cannot be read.
  """
  files.make_folder(folder, instead)
  with _locked(folder, does, instead):
    try:
      if before := _shown(_read(folder)):
        _LOG.warning(
            '%s: %s has ended without a word; going on.', folder, before
        )
      writer = Writer(folder, does)
      writer.take()
      try:
        yield writer
      finally:
        writer.leave()
    finally:
      with contextlib.suppress(OSError):
        if os.listdir(folder) == [_LOCK]:
          os.unlink(folder / _LOCK)


def check_free(folder: pathlib.Path, does: str, instead: str) -> None:
  """Raises UserError where another process is at work; the folder may be none.

  It takes nothing, as `alone` does.
  """
  if (folder / _LOCK).exists():
    with _locked(folder, does, instead):
      pass


@contextlib.contextmanager
def _locked(folder: pathlib.Path, does: str, instead: str) -> Iterator[None]:
  # Its own stand-in where the system has no locks would outlive a kill.
  lock = filelock.FileLock(folder / _LOCK, fallback_to_soft=False)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    by = who(folder)
    raise UserError(
        f'Another process {does} in {folder}{f": {by}" if by else ""}. Wait for'
        f' it, or give {instead}.'
    ) from None
  except OSError as e:
    _LOG.warning('%s cannot be locked: %s', folder, e)
  try:
    yield
  finally:
    lock.release()


def who(folder: pathlib.Path) -> str:
  """The writer of a folder, '' where it is not known.

  'process 123 on host-1, since 2026-01-31 12:00:00.000+01:00'.
  """
  with contextlib.suppress(UserError):
    return _shown(_read(folder))
  return ''


def _shown(record: dict[str, Any]) -> str:
  if not record:
    return ''
  return f'process {record["pid"]} on {record["host"]}, since {record["since"]}'


def _read(folder: pathlib.Path) -> dict[str, Any]:
  """The record of a folder's writer, {} for none; UserError if damaged."""
  path = folder / _RECORD
  again = 'If no other process writes to this folder, remove it.'
  try:
    content = untrusted.read(path, _LARGEST, again)
  except OSError:
    return {}
  record = json_file.parse(content, path, again)
  json_file.check(record, _FIELDS, path, again)
  return record
