"""Codec files whose parts cannot go together."""

import json

import numpy as np
import pytest

from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import codec as codec_lib, model_codec
from dualenc_jax.retrieval.compression.product import Product
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


def of_plan(**fields):
  return lambda plan, _: plan.update(fields)


def of_array(name, change):
  return lambda _, arrays: arrays.update({name: change(arrays[name])})


@pytest.mark.parametrize('name, change, message', [
    ('int8', of_plan(dim=D + 1), f'vectors of dim {D}, not {D + 1}'),
    ('int8', of_plan(rescored=-1), 'rescored is -1'),
    ('int8', of_part(0, step=3), 'step of shape'),
    ('int8', of_part(0, **{'class': 'os.system'}), 'damaged'),
    ('binary', of_part(0, dim=10**12), 'not 8'),
    ('fp16', of_part(0, dtype='O'), 'do not fit'),
    ('rotated:2', of_array('1/levels', lambda x: x[:2]), 'do not fit'),
    ('pca:4+int8', of_array('0/matrix', lambda x: x[:3]), 'dim 4, not 3'),
    ('pca:4', of_part(0, queries={'tensor': '0/matrix'}), 'damaged'),
    ('int8', of_plan(parts=[{'class': 'Linear', 'matrix': 1}]), 'cannot'),
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


@pytest.mark.parametrize('fact, value', [('dim', 9), ('normalise', 3)])
def test_facts_of_a_model_are_checked_too(fact, value):
  centroids = VECTORS.reshape(4, 16, 8)[:, :, :2]
  codec = compression.Codec('jpq:4x4', D, (), Product(centroids, centroids))
  facts, arrays = model_codec.facts(codec), model_codec.arrays(codec)
  found = model_codec.from_arrays(facts, arrays)
  np.testing.assert_array_equal(found.encode(VECTORS), codec.encode(VECTORS))
  with pytest.raises(UserError, match='codec of the model'):
    model_codec.from_arrays({**facts, fact: value}, arrays)
  with pytest.raises(UserError, match='arrays assign, queries_0, score; expec'):
    model_codec.from_arrays(facts, {**arrays, 'queries_0': np.eye(D)})
