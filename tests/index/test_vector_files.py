"""Vectors of any model, by their files."""

import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest

from dualenc_jax.retrieval.index import vector_files
from dualenc_jax.retrieval.index.vector_files import VectorFile
from dualenc_jax.utils.errors import UserError

VECTORS = np.random.default_rng(0).normal(size=(5, 3))
TEXTS = ['a', 'b', None, 'd', 'é']


def write_parquet(path, ids='abcde', vectors=VECTORS.tolist(), **more):
  columns = {'id': list(ids), 'vector': vectors, **more}
  parquet.write_table(pa.table(columns), path, row_group_size=2)


@pytest.mark.parametrize('kind', ['float16', 'float32', 'list'])
def test_parquet(tmp_path, kind):
  path, rows, wanted = tmp_path / 'x.parquet', VECTORS.tolist(), VECTORS
  if kind != 'list':
    wanted = VECTORS.astype(kind)
    flat = pa.array(wanted.ravel())
    rows = pa.FixedSizeListArray.from_arrays(flat, VECTORS.shape[1])
  write_parquet(path, range(5), rows, text=TEXTS)
  file = VectorFile.open(path)
  np.testing.assert_array_equal(file.vectors[[4, 0]], wanted[[4, 0]])
  assert file.vectors.dtype == wanted.dtype and len(file) == 5
  assert [file.ids.text(i) for i in range(5)] == list('01234')
  assert [*file.read_texts()] == [['a', 'b', '', 'd', 'é']]
  assert len({*file.text_keys.tolist(), *file.id_keys.tolist()}) == 10
  write_parquet(path)
  assert VectorFile.open(path).read_texts is None


def test_numpy(tmp_path):
  path = tmp_path / 'x.npy'
  np.save(path, VECTORS)
  for end in ('\n', '\r\n', ''):
    text = (end or '\n').join(['q1', 'q2', 'q3', 'q4', 'é']) + end
    (tmp_path / 'x.txt').write_bytes(text.encode())
    file = VectorFile.open(path)
    names = [file.ids.text(i) for i in range(5)]
    assert names == ['q1', 'q2', 'q3', 'q4', 'é']
  assert isinstance(file.vectors, np.memmap)


def test_bad_files(tmp_path, monkeypatch):
  monkeypatch.setattr(vector_files, 'BLOCK', 2)
  name, numpy = tmp_path / 'x.parquet', tmp_path / 'x.npy'

  def refuses(path, message):
    with pytest.raises(UserError, match=message):
      VectorFile.open(path)

  refuses(tmp_path / 'none', 'none does not exist')
  refuses(tmp_path, 'expected a folder of `dualenc encode`, or a file, .parq')
  write_parquet(name, 'abcab')
  refuses(name, "rows 1 and 4 have the id 'a'")
  several = 'several dimensions, or a row without one'
  for ids, vectors, message in (
      ('ab', [[1.0, 2.0], [1.0]], several),
      ('ab', [[1.0, 2.0], None], several),
      ('ab', [b'1', b'2'], several),
      ('abc', [[1.0], [2.0], [1.0, 2.0]], 'no vectors of one dimension'),
      ('ab', [[1], [2]], 'no vectors of one dimension'),
  ):
    write_parquet(name, ids, vectors)
    refuses(name, message)
  parquet.write_table(pa.table({'id': ['a'], 'codes': [b'1']}), name)
  refuses(name, 'has the columns id, codes. Expected columns id')
  name.write_bytes(b'PAR1')
  refuses(name, 'not a Parquet file of vectors')
  np.save(numpy, VECTORS)
  refuses(numpy, 'no file .*x.txt. Expected the ids of x.npy')
  (tmp_path / 'x.txt').write_text('a\nb\n')
  refuses(numpy, 'has 2 ids, and x.npy 5 vectors')
  np.save(numpy, VECTORS[0])
  refuses(numpy, r'holds float64 \(3,\); expected floats')
  np.save(numpy, np.array([{}]))
  refuses(numpy, 'cannot be read')
