"""Indexes that hold codes: made, gone on with, and refused."""

import index_files
from index_files import D, embeddings_for, header, passages_from
import numpy as np
import pytest

from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.index import Index, IndexBuild
from dualenc_jax.utils.errors import UserError

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


def write(build, shards=range(3)):
  codes = build.codec.encode(embeddings_for(COUNT))
  return index_files.write_shards(build, shards, codes, passages_from(0, COUNT))


def whole(folder, codec, replace=False):
  build = build_of(folder, codec, replace)
  assert write(build) == [0, 1, 2] and build.finish()
  return Index.open(folder)


@pytest.mark.parametrize('name', ['pq:3x2', 'binary', 'pca:4'])
def test_round_trip(name, tmp_path):
  codec = trained(name)
  whole(tmp_path / 'index', codec)
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
  # Nobody is asked for another.
  build = IndexBuild(tmp_path / 'index', plan(), codec=None)
  build.start()
  assert write(build) == [0, 2] and build.finish()
  index = Index.open(tmp_path / 'index')
  np.testing.assert_array_equal(
      index.embeddings.codes[:], first.encode(embeddings_for(COUNT))
  )


@pytest.mark.parametrize('damage, message', [
    ('gone', 'codec.safetensors does not exist'),
    ('another codebook', 'shard.json: its codes are by another'),
])
def test_shards_that_no_codec_fits_are_made_again(damage, message, tmp_path):
  right = trained()
  whole(tmp_path / 'index', right)
  path = tmp_path / 'index' / codec_lib.FILE
  path.unlink()
  if damage != 'gone':
    codec_lib.save(path, trained(seed=1))
  with pytest.raises(UserError, match=message):
    Index.open(tmp_path / 'index')
  index = whole(tmp_path / 'index', right, replace=True)
  np.testing.assert_array_equal(
      index.embeddings.codes[:], right.encode(embeddings_for(COUNT))
  )
