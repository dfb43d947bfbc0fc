"""Indexes that hold codes: made, gone on with, and refused."""

import json

import index_files
from index_files import D, embeddings_for, header, passages_from
import numpy as np
import pytest

from dualenc_jax import compression
from dualenc_jax.compression import codec_file
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index, IndexBuild

COUNT = 10


def trained(name='pq:3x2', seed=0):
  return compression.spec(name).fit(embeddings_for(COUNT), seed=seed)


def plan(name='pq:3x2'):
  dtype, width = compression.spec(name).shape(D)
  return header(COUNT, codec=name, dtype=dtype, width=width)


def build_of(folder, codec, replace=False):
  build = IndexBuild(folder, plan(codec.name), replace, lambda: codec)
  build.start()
  return build


def write(build, shards=None):
  codes = build.codec.encode(embeddings_for(COUNT))
  shards = range(build.header.shards) if shards is None else shards
  return index_files.write_shards(build, shards, codes, passages_from(0, COUNT))


@pytest.mark.parametrize('name', ['pq:3x2', 'int8', 'binary', 'pca:4', 'bf16'])
def test_round_trip(name, tmp_path):
  codec = trained(name)
  build = build_of(tmp_path / 'index', codec)
  write(build)
  assert build.finish()
  index = Index.open(tmp_path / 'index', {'codec': name})
  expected = codec.decode(codec.encode(embeddings_for(COUNT)))
  np.testing.assert_array_equal(index.embeddings[:], expected)
  np.testing.assert_array_equal(index.embeddings[[7, 2]], expected[[7, 2]])
  np.testing.assert_array_equal(index.embeddings[3], expected[3])
  assert index.embeddings.codec.name == name
  assert list(index.ids) == [f'id{i}' for i in range(COUNT)]


def test_the_first_codec_is_kept(tmp_path):
  first = trained(seed=0)
  write(build_of(tmp_path / 'index', first), [1])

  def another():
    raise AssertionError('there is one')

  build = IndexBuild(tmp_path / 'index', plan(), codec=another)
  build.start()
  assert build.missing() == [0, 2]
  write(build)
  assert build.finish()
  index = Index.open(tmp_path / 'index')
  np.testing.assert_array_equal(
      index.embeddings.codes[:], first.encode(embeddings_for(COUNT))
  )


def test_another_codec_is_another_index(tmp_path):
  write(build_of(tmp_path / 'index', trained()))
  with pytest.raises(UserError, match="codec is 'pq:3x2', expected 'int8'"):
    IndexBuild(tmp_path / 'index', plan('int8'))
  with pytest.raises(UserError, match="dtype is 'uint8', expected 'float32'"):
    IndexBuild(tmp_path / 'index', header(COUNT))


def test_codes_of_another_codebook(tmp_path):
  for name, seed in (('one', 0), ('other', 1)):
    build = build_of(tmp_path / name, trained(seed=seed))
    write(build)
    build.finish()
  codec = 'codec.safetensors'
  (tmp_path / 'other' / codec).rename(tmp_path / 'one' / codec)
  with pytest.raises(UserError, match='shard.json: its codes are by another'):
    Index.open(tmp_path / 'one')


def test_a_codec_that_is_gone(tmp_path):
  build = build_of(tmp_path / 'index', trained())
  write(build)
  build.finish()
  (tmp_path / 'index' / 'codec.safetensors').unlink()
  with pytest.raises(UserError, match='codec.safetensors cannot be read'):
    Index.open(tmp_path / 'index')
  # It is made anew, with all of its shards.
  build = build_of(tmp_path / 'index', trained(seed=1))
  assert write(build) == [0, 1, 2]
  assert build.finish()
  Index.open(tmp_path / 'index')


def test_truncated_codes(tmp_path):
  build = build_of(tmp_path / 'index', trained())
  write(build)
  build.finish()
  path = tmp_path / 'index' / 'shard-00001' / 'embeddings.npy'
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(UserError, match='embeddings.npy: truncated'):
    Index.open(tmp_path / 'index')


def test_a_width_that_is_not_the_codecs(tmp_path):
  build = build_of(tmp_path / 'index', trained())
  write(build)
  build.finish()
  path = tmp_path / 'index' / 'header.json'
  found = json.loads(path.read_text())
  path.write_text(json.dumps(found | {'width': 5}))
  with pytest.raises(UserError, match=r'the header says uint8 \(4, 5\)'):
    Index.open(tmp_path / 'index')


@pytest.mark.parametrize('damage', ['another codebook', 'one of another kind'])
def test_shards_that_no_codec_fits_are_made_again(damage, tmp_path):
  right = trained()
  build = build_of(tmp_path / 'index', right)
  write(build)
  build.finish()
  wrong = trained(seed=1) if damage == 'another codebook' else trained('int8')
  codec_file.write(tmp_path / 'index' / codec_file.FILE, wrong)
  with pytest.raises(UserError, match='by another'):
    Index.open(tmp_path / 'index')
  build = build_of(tmp_path / 'index', right)
  assert write(build) == [0, 1, 2]
  assert build.finish()
  index = Index.open(tmp_path / 'index')
  np.testing.assert_array_equal(
      index.embeddings.codes[:], right.encode(embeddings_for(COUNT))
  )
