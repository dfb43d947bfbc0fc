"""Codec files that are damaged."""

import json

import numpy as np
import pytest

from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file

D = 8
VECTORS = np.random.default_rng(0).normal(size=(64, D)).astype(np.float32)


def write(path, name, change):
  """A codec's file whose plan and arrays a function has changed."""
  codec_lib.save(path, compression.spec(name).fit(VECTORS))
  metadata = dict(safetensors_file.metadata(path))
  arrays = {k: t.read() for k, t in safetensors_file.read(path).items()}
  plan = json.loads(metadata['codec'])
  change(plan, arrays)
  tensors = {
      key: safetensors_file.Tensor(key, array.shape, lambda array=array: array)
      for key, array in arrays.items()
  }
  metadata['codec'] = json.dumps(plan)
  safetensors_file.write(path, tensors, metadata)


def of_part(number, **fields):
  return lambda plan, _: plan['parts'][number].update(fields)


@pytest.mark.parametrize('name, change, message', [
    ('int8', of_part(0, **{'class': 'os.system'}), 'damaged'),
    ('pca:4', of_part(0, queries={'tensor': '0/matrix'}), 'damaged'),
    ('int8', lambda plan, _: plan.update(dim='8'), 'dim'),
])
def test_it_is_named(tmp_path, name, change, message):
  path = tmp_path / 'codec.safetensors'
  write(path, name, change)
  with pytest.raises(UserError, match=f'codec.safetensors.*{message}'):
    codec_lib.load(path)


def test_damaged_files(tmp_path):
  path = tmp_path / 'codec.safetensors'
  codec_lib.save(path, compression.spec('int8').fit(VECTORS))
  whole, nan = path.read_bytes(), np.float32(np.nan).tobytes()
  for content, message in (
      (whole[:-10], 'damaged or was cut'),
      (whole[:-4] + nan, 'step holds NaN'),
      (whole.replace(b'dualenc-codec', b'another-codec'), 'not a codec'),
  ):
    path.write_bytes(content)
    with pytest.raises(UserError, match=f'codec.safetensors.*{message}'):
      codec_lib.load(path)
