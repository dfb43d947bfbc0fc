"""Who writes to a folder: the second is refused, the dead are taken over."""

import fcntl
import shutil
import socket
import subprocess
import sys
import time

import pytest

from dualenc_jax.utils import folder_lock
from dualenc_jax.utils.errors import UserError


def start(folder):
  """A process that holds a folder until its input ends."""
  code = """
import pathlib, sys
from dualenc_jax.utils import folder_lock
with folder_lock.lock_folder(pathlib.Path(sys.argv[1]), 'trains', 'another'):
  print('in', flush=True)
  sys.stdin.read()
"""
  process = subprocess.Popen(
      [sys.executable, '-c', code, str(folder)],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
  )
  assert process.stdout.readline() == 'in\n'
  return process


def lock(folder):
  with folder_lock.lock_folder(folder, 'trains', 'another MODEL_DIR'):
    return True


def test_a_second_is_told_who_and_a_killed_one_is_taken_over(tmp_path, caplog):
  other = start(tmp_path)
  with pytest.raises(UserError) as error:
    lock(tmp_path)
  words = f'process {other.pid} on {socket.gethostname()}, since 20'
  assert f'Another process trains in {tmp_path}: {words}' in str(error.value)
  assert 'give another MODEL_DIR' in str(error.value)
  other.kill()
  # Dead, but nobody has asked how it ended.
  time.sleep(0.5)
  assert lock(tmp_path)
  assert f'{words}' in caplog.text and 'was killed' in caplog.text
  other.communicate()
  caplog.clear()
  # That one has left properly.
  assert lock(tmp_path) and not caplog.text
  assert not any(tmp_path.iterdir())


def test_where_there_are_no_locks_the_last_one_writes(
    tmp_path, monkeypatch, caplog
):
  def none(*args, **kwargs):
    raise OSError(38, 'Function not implemented')

  with folder_lock.lock_folder(tmp_path, 'trains', 'another') as own:
    with monkeypatch.context() as patch:
      patch.setattr(fcntl, 'flock', none)
      with folder_lock.lock_folder(tmp_path, 'trains', 'a third'):
        assert 'cannot be locked' in caplog.text
        with pytest.raises(UserError, match='another writer: proc'):
          own.check()


def test_a_record_that_is_none_is_in_nobodys_way(tmp_path, caplog):
  (tmp_path / '.writer').write_bytes(b'\xff\x1b[2J')
  assert lock(tmp_path)
  assert '\x1b' not in caplog.text


def test_a_folder_that_goes_is_noticed(tmp_path, monkeypatch):
  folder = tmp_path / 'model'
  for spoil, words in [
      (lambda: shutil.rmtree(folder), 'model is gone: removed'),
      (
          lambda: (shutil.rmtree(folder), folder.mkdir()),
          'model is gone',
      ),
      (
          lambda: (folder / '.writer').write_text('process 7 on far'),
          'model has another writer: process 7 on far.',
      ),
  ]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with folder_lock.lock_folder(folder, 'trains', 'another') as own:
      own.check()
      spoil()
      with pytest.raises(UserError, match=words):
        own.check()

  def away(*args):
    raise OSError(5, 'Input/output error')

  with folder_lock.lock_folder(folder, 'trains', 'another') as own:
    monkeypatch.setattr(folder_lock, '_read_owner', away)
    own.check()
