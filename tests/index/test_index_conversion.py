"""Indexes in files of other programs: what is refused, damaged or cut short."""

import os
import signal
import time

import index_files
import numpy as np
import pytest

from dualenc_jax.cli import main as cli
from dualenc_jax.retrieval.index import conversion, faiss_files
from dualenc_jax.retrieval.index.rows import Rows


@pytest.fixture
def converted(tmp_path, capsys):
  """Called: converts an index as a user does; returns its error if it fails."""

  def converted(form, *flags, source='index'):
    source, out = tmp_path / source, tmp_path / 'out'
    argv = ['convert', str(source), f'--to={form}', f'--out={out}', *flags]
    status = cli.main(argv)
    error = capsys.readouterr().err
    if status:
      assert status == 2 and not out.exists()
      return error

  return converted


@pytest.mark.parametrize('id_', ['007', '1\u0662', '+1', f'{2**63}'])
def test_ids_that_are_no_whole_numbers(tmp_path, converted, monkeypatch, id_):
  passages = [index_files.Passage(i, '', '', 'text') for i in ('1', '-2', id_)]
  monkeypatch.setattr(index_files, 'passages_from', lambda *_: passages)
  index_files.write(tmp_path / 'index', 3)
  message = converted('faiss', '--ids=own')
  assert f'row 2 of {tmp_path / "index"} has the id {id_!r}' in message
  assert 'Leave the flag out' in message


@pytest.mark.parametrize('form', sorted(conversion.FORMS))
def test_a_kill_leaves_nothing(tmp_path, monkeypatch, converted, form):
  index_files.write(tmp_path / 'index')
  before = signal.getsignal(signal.SIGTERM)

  def blocks():
    yield index_files.embeddings_for(4)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

  rows = Rows(10, index_files.D, np.float32, blocks)
  parts = conversion.Parts(rows, {'codec': 'float32'}, faiss_files.flat)
  monkeypatch.setattr(conversion, 'parts_of', lambda index: parts)
  try:
    with pytest.raises(SystemExit):
      converted(form)
  finally:
    signal.signal(signal.SIGTERM, before)
  assert os.listdir(tmp_path) == ['index']
