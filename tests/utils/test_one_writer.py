"""Who writes to a folder: the second is refused, the dead are taken over."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from dualenc_jax.utils import writer
from dualenc_jax.utils.errors import UserError


def start(folder):
  """A process that is the writer of a folder until its input ends."""
  code = """
import pathlib, sys
from dualenc_jax.utils import writer
with writer.alone(pathlib.Path(sys.argv[1]), 'trains', 'another'):
  print('in', flush=True)
  sys.stdin.read()
"""
  process = subprocess.Popen(
      [sys.executable, '-c', code, str(folder)],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
  )
  assert process.stdout.readline() == 'in\n'
  return process


def alone(folder):
  with writer.alone(folder, 'trains', 'another MODEL_DIR'):
    return True


def test_a_second_is_told_who_and_a_killed_one_is_taken_over(tmp_path, caplog):
  other = start(tmp_path)
  with pytest.raises(UserError) as error:
    alone(tmp_path)
  words = f'process {other.pid} on {socket.gethostname()}, since 20'
  assert f'Another process trains in {tmp_path}: {words}' in str(error.value)
  assert 'give another MODEL_DIR' in str(error.value)
  other.kill()
  # Dead, but nobody has asked how it ended.
  time.sleep(0.5)
  assert alone(tmp_path)
  assert f'{words}' in caplog.text and 'ended without a word' in caplog.text
  other.communicate()
  caplog.clear()
  # That one has left properly.
  assert alone(tmp_path) and not caplog.text
  assert not any(tmp_path.iterdir())


def test_where_there_are_no_locks_the_last_one_writes(
    tmp_path, monkeypatch, caplog
):
  def none(*args, **kwargs):
    raise OSError(38, 'Function not implemented')

  with writer.alone(tmp_path, 'trains', 'another') as own:
    with monkeypatch.context() as patch:
      patch.setattr(fcntl, 'flock', none)
      with writer.alone(tmp_path, 'trains', 'a third'):
        assert 'cannot be locked' in caplog.text
        with pytest.raises(UserError, match='another writer at step 3: proc'):
          own.check(' at step 3')


def test_a_server_that_is_away_for_a_moment(tmp_path, monkeypatch):
  def away(*args):
    raise OSError(5, 'Input/output error')

  with writer.alone(tmp_path, 'trains', 'another') as own:
    with monkeypatch.context() as patch:
      patch.setattr(writer.untrusted, 'read', away)
      own.check(' at step 2')
      patch.setattr(writer, '_AWAY_SECONDS', 0.0)
      with pytest.raises(UserError, match='is gone at step 3'):
        own.check(' at step 3')
    own.check(' at step 4')


@pytest.mark.parametrize('content, said', [
    (None, 'not a regular file'), ('[' * 50_000, 'not JSON'),
    ('{"pid": "x", "host": "h", "since": "now"}', "pid is 'x'"),
])
def test_a_record_that_is_none(tmp_path, content, said):
  record = tmp_path / '.writer.json'
  if content is None:
    os.mkfifo(record)
  else:
    record.write_bytes(content.encode('latin-1'))
  with pytest.raises(UserError, match=rf'writer\.json.*{said}.* remove it'):
    alone(tmp_path)
  assert not writer.who(tmp_path)
  record.unlink()
  with writer.alone(tmp_path, 'trains', 'another') as own:
    record.unlink()
    os.mkfifo(record)
    with pytest.raises(UserError, match='another writer at step 3: .*json'):
      own.check(' at step 3')


def test_a_folder_that_goes_is_noticed(tmp_path):
  folder = tmp_path / 'model'
  for spoil, words in [
      (lambda: shutil.rmtree(folder), 'model is gone at step 3: removed'),
      (
          lambda: (shutil.rmtree(folder), folder.mkdir()),
          r'\.writer\.json is gone at step 3: its folder',
      ),
      (
          lambda: (folder / '.writer.json').write_text(
              json.dumps({'pid': 7, 'host': 'far', 'since': 'now'})
          ),
          'model has another writer at step 3: process 7 on far, since now',
      ),
  ]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with writer.alone(folder, 'trains', 'another') as own:
      own.check(' at step 2')
      spoil()
      with pytest.raises(UserError, match=words):
        own.check(' at step 3')
