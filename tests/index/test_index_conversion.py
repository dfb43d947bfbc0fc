"""Indexes in files of other programs: what is refused, damaged or cut short."""

import json
import os
import signal
import time

import faiss
import index_files
import numpy as np
from pyarrow import parquet
import pytest

from dualenc_jax.commands import cli
from dualenc_jax.index import conversion, Index, parquet_file
from dualenc_jax.interop import faiss_files
from dualenc_jax.interop.rows import Rows


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


@pytest.mark.parametrize('id_', ['id0', '007', '9223372036854775808'])
def test_ids_that_are_no_whole_numbers(tmp_path, converted, monkeypatch, id_):
  passages = [index_files.Passage(i, '', '', 'text') for i in ('1', '-2', id_)]
  monkeypatch.setattr(index_files, 'passages_from', lambda *_: passages)
  index_files.write(tmp_path / 'index', 3)
  message = converted('faiss', '--ids=own')
  assert f'row 2 of {tmp_path / "index"} has the id {id_!r}' in message
  assert 'Leave the flag out' in message


def test_codes_are_bytes_of_one_length(tmp_path, converted, monkeypatch):
  """What a codec gives: codes, what they mean, what decodes them."""
  index_files.write(tmp_path / 'index')
  index = Index.open(tmp_path / 'index')
  codes = np.packbits(index.embeddings[:] >= 0, axis=1)
  parts = conversion.Parts(
      Rows.of(codes),
      {'codec': 'sign', 'bit_order': 'big'},
      faiss_files.binary,
      {'low': np.arange(3.0)},
  )
  monkeypatch.setattr(conversion, 'parts_of', lambda index: parts)
  converted('vectors')
  out = (tmp_path / 'out').rename(tmp_path / 'vectors')
  table = parquet.read_table(out / 'vectors.parquet')
  content = b''.join(table['codes'].to_pylist())
  np.testing.assert_array_equal(
      np.frombuffer(content, np.uint8).reshape(len(index), -1), codes
  )
  about = json.loads(table.schema.metadata[b'dualenc'])
  assert about['codec'] == 'sign' and about['bit_order'] == 'big'
  with np.load(out / 'codec.npz') as arrays:
    np.testing.assert_array_equal(arrays['low'], np.arange(3.0))
  converted('faiss')
  found = faiss.read_index_binary(str(tmp_path / 'out/index.faiss'))
  distances, _ = found.search(codes, 1)
  assert not distances.any() and found.ntotal == len(index)
  about = json.loads((tmp_path / 'out/about.json').read_text())
  assert about['faiss'] == 'read_index_binary'


def test_parquet_that_reads_otherwise_is_not_there(
    tmp_path, monkeypatch, converted
):
  index_files.write(tmp_path / 'index')
  array = parquet_file._array
  wrong = index_files.embeddings_for(10, seed=1)
  calls = iter([lambda kind, block: array(kind, wrong), array])
  monkeypatch.setattr(
      parquet_file, '_array', lambda kind, block: next(calls)(kind, block)
  )
  message = converted('vectors')
  assert 'differs from what was written, after row 0' in message
  assert os.listdir(tmp_path) == ['index']


def test_damaged_indexes_and_halves_of_them(tmp_path, converted):
  index_files.write(tmp_path / 'index')
  shard = tmp_path / 'index' / 'shard-00001' / 'embeddings.npy'
  shard.write_bytes(shard.read_bytes()[:-1])
  assert 'truncated' in converted('faiss')
  build = index_files.IndexBuild(tmp_path / 'half', index_files.header())
  build.start()
  message = converted('faiss', source='half')
  assert 'half.partial has 0 of 3 shards' in message


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
