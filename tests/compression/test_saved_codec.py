"""The codec of an index in place of a name."""

import numpy as np
import pytest

from dualenc_jax import compression
from dualenc_jax.compression import codec_file
from dualenc_jax.compression.product import Product
from dualenc_jax.errors import UserError


def test_a_folder_stands_for_its_codec(tmp_path):
  rng = np.random.default_rng(0)
  assign, score = rng.normal(size=(2, 4, 16, 2)).astype(np.float32)
  codec = compression.Codec('jpq:4x4', 8, (), Product(assign, score))
  codec_file.write(tmp_path / codec_file.FILE, codec)
  spec = compression.spec(str(tmp_path))
  assert (spec.name, spec.floats, spec.needs_queries) == (
      'jpq:4x4', None, False
  )
  assert tuple(spec.shape(8)) == ('uint8', 2)
  vectors = rng.normal(size=(5, 8)).astype(np.float32)
  found = spec.fit(vectors[:1])
  codes = found.encode(vectors)
  np.testing.assert_array_equal(codes, codec.encode(vectors))
  np.testing.assert_array_equal(found.decode(codes), codec.decode(codes))
  with pytest.raises(UserError, match=r'trained for \[rows, 8\]'):
    found.encode(vectors[:, :4])


def test_a_folder_without_one(tmp_path):
  with pytest.raises(UserError, match='No codec is called'):
    compression.spec(str(tmp_path))
