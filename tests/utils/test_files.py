"""Files and folders that appear whole or not at all, whatever happens."""

import errno
import os
import pathlib
import threading

import pytest

from dualenc_jax.utils import files, folder_lock
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import GrowingFolder, new_folder


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / 'x.txt'
  files.write(path, 'before')

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'replace', full)
  with pytest.raises(
      UserError,
      match='x.txt cannot be written: No space left.* Make room there, or give',
  ):
    files.write(path, 'after')
  assert [p.name for p in tmp_path.iterdir()] == ['x.txt']
  assert path.read_text() == 'before'


@pytest.mark.parametrize('sync', [True, False])
def test_a_file_is_on_the_disk_before_it_appears(tmp_path, monkeypatch, sync):
  """Or a machine that loses power would leave half of it."""
  calls, path = [], tmp_path / 'x.bin'
  for name in ('fsync', 'replace'):
    done = getattr(os, name)
    monkeypatch.setattr(
        os, name, lambda *a, n=name, f=done: (calls.append(n), f(*a))
    )
  with files.replacing(path, sync) as file:
    file.write(b'before')
  assert calls == ['fsync', 'replace'][not sync :]
  # An error in the block leaves it as it was.
  with pytest.raises(KeyError), files.replacing(path) as file:
    file.write(b'after')
    raise KeyError
  assert [p.name for p in tmp_path.iterdir()] == ['x.bin']
  assert path.read_bytes() == b'before'


def test_text_that_utf8_has_no_bytes_for_is_named(tmp_path):
  with pytest.raises(UserError, match=r"surrogate pair, in 'a .ud83d b'"):
    files.write(tmp_path / 'x.txt', 'a \ud83d b')
  assert not list(tmp_path.iterdir())


def test_a_folder_that_is_made_and_not_filled_goes(tmp_path):
  with pytest.raises(KeyError), files.removing_empty_folders():
    files.make_folder(tmp_path / 'filled/empty')
    (tmp_path / 'filled/file').touch()
    with folder_lock.lock_folder(tmp_path / 'made/locked', 'trains', 'another'):
      raise KeyError
  assert [*tmp_path.rglob('*')] == [
      tmp_path / 'filled', tmp_path / 'filled/file'
  ]


def make(folder, text):
  folder.mkdir()
  (folder / 'file').write_text(text)


def test_a_kill_between_the_renames_loses_nothing(tmp_path):
  growing = GrowingFolder(tmp_path / 'x')
  make(growing.aside, 'old')
  make(growing.partial, 'new')
  assert (growing.readable() / 'file').read_text() == 'old'
  growing.restore()
  assert (growing.folder / 'file').read_text() == 'old'
  growing.complete()
  assert (growing.folder / 'file').read_text() == 'new'
  # Killed before the older one was removed.
  make(growing.aside, 'old')
  assert growing.readable() == growing.folder
  growing.restore()
  assert [path.name for path in tmp_path.iterdir()] == ['x']


def test_a_rename_that_fails_leaves_the_old(tmp_path, monkeypatch):
  growing = GrowingFolder(tmp_path / 'x')
  make(growing.folder, 'old')
  make(growing.partial, 'new')
  rename = pathlib.Path.rename

  def fail(path, target):
    if path == growing.partial:
      raise OSError(5, 'Input/output error')
    return rename(path, target)

  monkeypatch.setattr(pathlib.Path, 'rename', fail)
  with pytest.raises(OSError, match='Input'):
    growing.complete()
  assert (growing.folder / 'file').read_text() == 'old'


def test_one_at_a_time(tmp_path):
  growing, waited, done = GrowingFolder(tmp_path / 'x'), threading.Event(), []

  def other():
    with GrowingFolder(tmp_path / 'x').locked(waited.set):
      done.append('other')

  with growing.locked():
    thread = threading.Thread(target=other)
    thread.start()
    assert waited.wait(30)
    done.append('first')
  thread.join(30)
  assert done == ['first', 'other']


def test_only_what_bears_the_mark_is_replaced(tmp_path):
  with pytest.raises(KeyError), new_folder(tmp_path / 'x') as new:
    (new / 'file').touch()
    raise KeyError
  assert not list(tmp_path.iterdir())
  with new_folder(tmp_path / 'x') as new:
    (new / 'mark').write_text('old')
  for marker in (None, 'other'):
    with pytest.raises(UserError, match='x exists.*Give --output_dir'):
      with new_folder(tmp_path / 'x', '--output_dir', marker):
        pass
  with new_folder(tmp_path / 'x', marker='mark') as new:
    (new / 'mark').write_text('new')
  assert (tmp_path / 'x' / 'mark').read_text() == 'new'
  assert [path.name for path in tmp_path.iterdir()] == ['x']


def test_a_place_that_cannot_be_written(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='file cannot be written.*Give --flag'):
    files.make_folder(tmp_path / 'file', '--flag')
  with pytest.raises(UserError, match='cannot be written.*Give|give --flag'):
    with new_folder(tmp_path / 'file' / 'x', '--flag'):
      pass
