"""Files that appear whole or not at all."""

import errno
import os

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.io import files


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / 'x.txt'
  files.write(path, 'before')

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'replace', full)
  with pytest.raises(
      UserError,
      match='x.txt cannot be written: No space left on device. Make room there,'
      ' or give another folder',
  ):
    files.write(path, 'after')
  assert [p.name for p in tmp_path.iterdir()] == ['x.txt']
  assert path.read_text() == 'before'


def test_text_that_utf8_has_no_bytes_for_is_named(tmp_path):
  with pytest.raises(UserError, match=r"surrogate pair, in 'a .ud83d b'"):
    files.write(tmp_path / 'x.txt', 'a \ud83d b')
  assert not list(tmp_path.iterdir())


def test_an_error_in_the_block_leaves_the_file_as_it_was(tmp_path):
  path = tmp_path / 'x.bin'
  with files.replacing(path, sync=True) as file:
    file.write(b'before')
  with pytest.raises(KeyError), files.replacing(path) as file:
    file.write(b'after')
    raise KeyError
  assert [p.name for p in tmp_path.iterdir()] == ['x.bin']
  assert path.read_bytes() == b'before'


def test_what_to_give_instead_is_named(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='file cannot be written.*Give --out'):
    files.make_folder(tmp_path / 'file', '--out')
