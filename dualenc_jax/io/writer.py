"""A lock on a folder: one writer at a time, which is named."""

from collections.abc import Iterator
import contextlib
import datetime
import json
import logging
import os
import pathlib
import socket
import threading
import time
from typing import Any

import filelock

from dualenc_jax.errors import UserError
from dualenc_jax.io import files, json_file, untrusted

_LOCK, _RECORD = '.lock', '.writer.json'
# A writer touches its record so often; one of another host that has not for so
# long is dead.
_BEAT_SECONDS, _DEAD_SECONDS = 10.0, 35.0
# For so long a folder may fail to be read.
_AWAY_SECONDS = 60.0
# Bytes of a record.
_LARGEST = 2**16
_FIELDS = {
    'pid': int, 'host': str, 'since': str, 'pids?': str | None,
    'started?': str | None,
}
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
        'pids': _pids(),
        'pid': os.getpid(),
        'started': _started(os.getpid()),
        'since': datetime.datetime.now().astimezone().isoformat(' ', 'seconds'),
    }).encode()
    self._done = threading.Event()
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
    threading.Thread(target=self._beat, daemon=True).start()

  def leave(self) -> None:
    """Removes that again."""
    self._done.set()
    with contextlib.suppress(OSError, UserError):
      if untrusted.read(self._path, _LARGEST) == self._content:
        self._path.unlink()

  def _beat(self) -> None:
    while not self._done.wait(_BEAT_SECONDS):
      with contextlib.suppress(OSError):
        os.utime(self._path)


@contextlib.contextmanager
def alone(folder: pathlib.Path, does: str, instead: str) -> Iterator[Writer]:
  """Keeps other processes out of a folder, which is made if it is missing.

  On one machine, and where a file system passes locks on to its server, that is
  the system's lock, which ends with its process. What a dead process has left
  is logged and taken over. Of another host it can only be seen whether it goes
  on beating, which takes half a minute.

  `does` is what the process does there: 'trains', `instead` what the user may
  give in its place.

  Raises:
    UserError: another process does it; which, and since when. Or what the last
      one has left cannot be read.
  """
  files.make_folder(folder, instead)
  # Its own stand-in where the system has no locks would outlive a kill.
  lock = filelock.FileLock(folder / _LOCK, fallback_to_soft=False)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    raise _busy(folder, does, instead, who(folder)) from None
  except OSError as e:
    # Some mounted buckets know no locks.
    _LOG.warning('%s cannot be locked: %s', folder, e)
  try:
    record = _read(folder)
    before = _shown(record)
    if before and _is_alive(folder, record):
      raise _busy(folder, does, instead, before)
    if before:
      _LOG.warning('%s: %s has ended without a word; going on.', folder, before)
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
    lock.release()


def check_free(folder: pathlib.Path, does: str, instead: str) -> None:
  """Raises UserError where a writer of this machine is seen to be at work.

  It takes nothing, nor waits, as `alone` does; the folder need not exist.
  """
  try:
    record = _read(folder)
  except UserError:
    return
  if record and _is_of_here(record) and _is_alive(folder, record):
    raise _busy(folder, does, instead, _shown(record))


def _busy(folder: pathlib.Path, does: str, instead: str, by: str) -> UserError:
  return UserError(
      f'Another process {does} in {folder}{f": {by}" if by else ""}. Wait for'
      f' it, or give {instead}.'
  )


def who(folder: pathlib.Path) -> str:
  """The writer of a folder, '' where it is not known.

  'process 123 on host-1, since 2026-01-31 12:00:00+01:00'.
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


def _is_of_here(record: dict[str, Any]) -> bool:
  """Whether the writer is a process that can be looked at."""
  return (record['host'], record.get('pids')) == (socket.gethostname(), _pids())


def _is_alive(folder: pathlib.Path, record: dict[str, Any]) -> bool:
  """Whether the writer of a folder lives, as far as can be seen from here."""
  if _is_of_here(record):
    # A process id comes again, but not with the same start.
    return _started(record['pid']) == record.get('started', '?')
  path = folder / _RECORD
  _LOG.warning(
      '%s: %s has not ended properly. From here that process cannot be looked'
      ' at; waiting %.0f s for a sign of life.',
      folder, _shown(record), _DEAD_SECONDS,
  )
  with contextlib.suppress(OSError):
    first = path.stat().st_mtime_ns
    end = time.monotonic() + _DEAD_SECONDS
    while time.monotonic() < end:
      time.sleep(1.0)
      if path.stat().st_mtime_ns != first:
        return True
  return False


def _pids() -> str | None:
  """Where process ids count: containers of one name have their own."""
  try:
    return os.readlink('/proc/self/ns/pid')
  except OSError:
    return None


def _started(pid: int) -> str | None:
  """When a process of this machine started; None where it runs no more."""
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    # The name of the program, in brackets, may have spaces.
    state, *rest = stat.rpartition(')')[2].split()
    # One that is dead stays a zombie until somebody asks how it ended.
    return None if state in 'ZX' else f'{boot} {rest[18]}'
  except OSError:
    pass
  if not os.path.isdir('/proc/self'):
    with contextlib.suppress(OSError):
      os.kill(pid, 0)
      return 'runs'
  return None
