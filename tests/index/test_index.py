"""The index on disk: round trip, and every kind of broken or other index."""

import json
import os

from index_files import D, embeddings_for, passages_from, write
import numpy as np
import pytest

from dualenc_jax.retrieval.index import Index
from dualenc_jax.retrieval.index.conversion import is_index
from dualenc_jax.utils.errors import UserError


def read(folder):
  index = Index.open(folder)
  return list(index.ids), [index.passage(i) for i in range(len(index))]


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / 'index')
  return tmp_path / 'index'


def test_round_trip(tmp_path):
  folder = tmp_path / 'runs' / 'index'
  provenance = {'step': 20, 'lengths': (64, 256), 'corpus': 'python_code'}
  write(folder, 11, provenance=provenance)
  index = Index.open(folder, {'tower': 'passage', 'step': 20, 'dim': D})
  rows, passages = embeddings_for(11), passages_from(0, 11)
  assert len(index) == 11 and index.embeddings.shape == (11, D)
  assert isinstance(index.embeddings[5:7].base.base, np.memmap)
  np.testing.assert_array_equal(index.embeddings, rows)
  assert [index.passage(i) for i in range(11)] == passages
  assert list(index.ids) == [p.id for p in passages]
  assert len(index.ids) == 11
  assert [index.ids[i] for i in (10, 0, -1)] == ['id10', 'id0', 'id10']
  assert index.ids[3:5] == ['id3', 'id4']
  assert json.loads((folder / 'header.json').read_text()) == {
      'format': 'dualenc-index', 'version': 3,
      'passages': 11, 'dim': D, 'dtype': 'float32',
      'tower': 'passage', 'normalised': True, 'tokens': 256,
      'shard_size': 4, 'shards': 3,
      'provenance': provenance | {'lengths': [64, 256]},
  }
  # Nothing but the index is left, and nothing of its making in it.
  assert os.listdir(folder.parent) == ['index']
  assert sorted(os.listdir(folder)) == [
      'header.json', 'shard-00000', 'shard-00001', 'shard-00002'
  ]
  for read_row, row in ((index.passage, -1), (index.ids.__getitem__, 11)):
    with pytest.raises(IndexError, match='expected 0 to 10'):
      read_row(row)
  # The files are of use without this library.
  shard = folder / 'shard-00001'
  np.testing.assert_array_equal(np.load(shard / 'embeddings.npy'), rows[4:8])
  assert (shard / 'ids.txt').read_text().split() == list(index.ids)[4:8]
  lines = (shard / 'passages.jsonl').read_bytes()
  starts = np.load(shard / 'offsets.npy')
  texts = [json.loads(lines[a:b]) for a, b in zip(starts, starts[1:])]
  assert texts == [vars(p) for p in passages[4:8]]


def test_every_field_that_differs_is_named(tmp_path):
  write(tmp_path / 'index', provenance={'step': 20, 'vocabulary': 'abc'})
  expect = {'tower': 'query', 'step': 20, 'vocabulary': 'abd', 'corpus': 'x'}
  with pytest.raises(UserError) as error:
    Index.open(tmp_path / 'index', expect)
  message = str(error.value)
  assert "tower is 'passage', expected 'query'" in message
  assert "vocabulary is 'abc', expected 'abd'" in message
  assert "corpus is none, expected 'x'" in message
  assert 'step' not in message
  assert message.endswith('was made with, or another index.')


def test_no_index(tmp_path):
  with pytest.raises(UserError, match='/header.json.*encode'):
    Index.open(tmp_path)


FILES = 'embeddings.npy', 'offsets.npy', 'passages.jsonl', 'ids.txt'


@pytest.mark.parametrize('name, share', [
    *((name, 0.99) for name in FILES),
    *((name, None) for name in ('ids.txt', 'shard.json', '')),
    ('shard.json', 0.5),
])
def test_missing_and_truncated_files(folder, tmp_path, name, share):
  path = folder / 'shard-00001' / name
  if share is None:
    os.rename(path, tmp_path.parent / f'{tmp_path.name}-elsewhere')
  else:
    os.truncate(path, int(share * path.stat().st_size))
  damage = 'cannot be read|is not JSON|truncated|there is no file'
  with pytest.raises(UserError, match=f'({damage}).*Run') as error:
    Index.open(folder)
  assert 'shard-00001' in str(error.value)
  # Encoding again says so, unless the index may be replaced.
  with pytest.raises(UserError, match='shard-00001'):
    write(folder)
  write(folder, replace=True)
  np.testing.assert_array_equal(
      Index.open(folder).embeddings, embeddings_for(10)
  )
  assert os.listdir(tmp_path) == ['index']


@pytest.mark.parametrize('change, message', [
    ({'format': 'faiss'}, "another format than 'dualenc-index'"),
    ({'version': 2}, 'version 2; this program reads version 3'),
    ({'passages': '10'}, "passages is '10'; expected a whole number"),
    ({'passages': 9}, r'npy: holds .* says float32 \(1, 6\)'),
    ({'passages': 15}, r'npy: holds .* says float32 \(4, 6\)'),
    ({'dtype': 'float16'}, r'npy: holds float32 .* says float16 \(4, 6\)'),
    ({'dim': 7}, r'embeddings.npy: holds .* says float32 \(4, 7\)'),
    ({'width': 10**9}, 'embeddings.npy'),
])
def test_a_header_that_does_not_fit(folder, change, message):
  path = folder / 'header.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(UserError, match=f'index/.*{message}'):
    Index.open(folder)


@pytest.mark.parametrize('file, old, new, message', [
    # What NumPy's parser of headers raises is no ValueError.
    ('embeddings.npy', b"{'descr'", b"{[descr'", ''),
    ('embeddings.npy', b'(4, 6)', b'(4, 9)', ''),
    ('offsets.npy', b"'<i8'", b"'|O8'", ''),
    ('ids.txt', b'id5', b'id\xff', ' is not text'),
    ('ids.txt', b'5\n', b'5 ', ': has 3 whole lines; expected 4'),
    ('passages.jsonl', b'"id5"', b'"id5]', ':2: not a passage'),
])
def test_damage_of_the_right_size(folder, file, old, new, message):
  path = folder / 'shard-00001' / file
  content = path.read_bytes()
  assert old in content and len(old) == len(new)
  path.write_bytes(content.replace(old, new, 1))
  with pytest.raises(UserError, match=f'shard-00001/{file}{message}'):
    read(folder)
  if not file.endswith('npy'):  # The other shards are of use.
    index = Index.open(folder)
    assert (index.ids[3], index.passage(3).id) == ('id3', 'id3')


@pytest.mark.parametrize('file', ['../header.json', 'shard.json', *FILES])
def test_a_pipe(folder, file):
  path, info = (folder / 'shard-00000' / name for name in (file, 'shard.json'))
  if file in FILES:
    sizes = json.loads(info.read_text())
    sizes['bytes'][file] = 0
    info.write_text(json.dumps(sizes))
  path.unlink()
  os.mkfifo(path)
  with pytest.raises(UserError, match=f'{path.name} is not a regular file'):
    read(folder)
  is_index(folder)
