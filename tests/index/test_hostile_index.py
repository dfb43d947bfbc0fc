"""Indexes whose files hang who opens them, or say what cannot be."""

import json
import os

import index_files
import numpy as np
import pytest

from dualenc_jax import compression
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index, Passage
from dualenc_jax.index.conversion import is_index
from dualenc_jax.index.corpus import Corpus

FILES = (
    'header.json',
    'shard-00000/shard.json',
    'shard-00000/embeddings.npy',
    'shard-00000/offsets.npy',
    'shard-00000/ids.txt',
    'shard-00000/passages.jsonl',
)


def read(folder):
  index = Index.open(folder)
  return list(index.ids), [index.passage(i) for i in range(len(index))]


def told(folder, file, size):
  """Makes shard.json say that a file has so many bytes."""
  path = folder / 'shard-00000' / 'shard.json'
  info = json.loads(path.read_text())
  info['bytes'][file] = size
  path.write_text(json.dumps(info))


@pytest.fixture
def folder(tmp_path):
  index_files.write(tmp_path / 'index', 3)
  return tmp_path / 'index'


@pytest.mark.parametrize('file', FILES)
def test_a_pipe(folder, file):
  (folder / file).unlink()
  if file.endswith(('npy', 'txt', 'jsonl')):
    told(folder, file.partition('/')[2], 0)
  os.mkfifo(folder / file)
  with pytest.raises(UserError, match=f'{file}.*no regular file'):
    read(folder)
  is_index(folder)


def replaced(folder, file, old, new):
  path = folder / 'shard-00000' / file
  content = path.read_bytes()
  assert old in content and len(old) == len(new)
  path.write_bytes(content.replace(old, new, 1))


@pytest.mark.parametrize(
    'file, old, new',
    [
        # What NumPy's parser of headers raises is no ValueError.
        ('embeddings.npy', b"{'descr'", b"{[descr'"),
        ('embeddings.npy', b'(3, 6)', b'(3, 9)'),
        ('embeddings.npy', b'(3, 6)', b'(9**9)'),
        ('offsets.npy', b"'<i8'", b"'|O8'"),
        ('ids.txt', b'id1', b'id\xff'),
        ('passages.jsonl', b'"id1"', b'[[1]]'),
        ('passages.jsonl', b'"name"', b'"nams"'),
    ],
)
def test_damage_of_the_right_size(folder, file, old, new):
  replaced(folder, file, old, new)
  with pytest.raises(UserError, match=f'shard-00000/{file}'):
    read(folder)


def test_a_passage_too_deep(tmp_path):
  deep = '[' * 50_000
  passage = Passage('d', 'n', 'f:1', deep)
  rows = np.eye(1, 4, dtype=np.float32)
  corpus = Corpus(rows, ['d'], lambda _: passage, True)
  corpus.write(tmp_path / 'index', 4, 8, {})
  path = tmp_path / 'index' / 'shard-00000' / 'passages.jsonl'
  path.write_text(path.read_text().replace(f'"{deep}"', f'{deep}[]'))
  with pytest.raises(UserError, match='passages.jsonl:1: not a passage'):
    read(tmp_path / 'index')


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('passages', 10**18, 'shards'),
        ('dim', 10**9, 'embeddings.npy'),
        ('width', 10**9, 'embeddings.npy'),
        ('width', '6', 'width'),
        ('normalised', 'yes', 'normalised'),
        ('codec', 5, 'codec'),
        ('provenance', {'tower_sha256': [1]}, 'tower_sha256'),
    ],
)
def test_a_header_that_cannot_be(folder, field, value, message):
  path = folder / 'header.json'
  header = json.loads(path.read_text())
  path.write_text(json.dumps({**header, field: value}))
  with pytest.raises(UserError, match=f'index/.*{message}'):
    Index.open(folder)


def test_the_codec_of_another_index(tmp_path):
  vectors = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
  for name in ('int8', 'int8:uniform'):
    codec = compression.spec(name).fit(vectors)
    stored = compression.Coded(codec, codec.encode(vectors))
    passages = index_files.passages_from(0, 8)
    ids = [p.id for p in passages]
    corpus = Corpus(stored, ids, passages.__getitem__, True)
    corpus.write(tmp_path / name, 4, 8, {})
  file = 'codec.safetensors'
  (tmp_path / 'int8' / file).write_bytes(
      (tmp_path / 'int8:uniform' / file).read_bytes()
  )
  with pytest.raises(UserError, match='is int8:uniform of .* says int8 and 4'):
    Index.open(tmp_path / 'int8')
