"""Safetensors files against the library of that name."""

import json
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as reference, safe_open
import small_folders
from tiny_weights import tensor

from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file


def arrays():
  rng = np.random.default_rng(0)
  return {
      'shared.weight': rng.normal(size=(7, 5)).astype(np.float32),
      'scale': rng.normal(size=3).astype(np.float32),
      'one': np.array(rng.normal(), np.float32),
      'empty': np.zeros((0, 4), np.float32),
      'ä "b"': rng.normal(size=(2, 3, 4)).astype(np.float32),
  }


def lazy(values):
  return {name: tensor(name, value) for name, value in values.items()}


@pytest.mark.parametrize('dtype', [np.float32, np.float16, ml_dtypes.bfloat16])
def test_reads_what_the_library_writes(tmp_path, dtype):
  path = tmp_path / 'model.safetensors'
  saved = {k: np.asarray(v, dtype) for k, v in arrays().items()}
  reference.save_file(saved, path, {'format': 'pt'})
  for given in (path, tmp_path):
    tensors = safetensors_file.read(given)
    assert tensors.keys() == saved.keys()
    for name, array in saved.items():
      assert tensors[name].shape == array.shape
      value = tensors[name].read()
      assert value.dtype == np.float32
      np.testing.assert_array_equal(value, array.astype(np.float32))


def test_the_library_reads_what_is_written(tmp_path):
  path = tmp_path / 'out.safetensors'
  tensors = lazy(arrays())
  tensors['transposed'] = tensors['shared.weight'].transposed()
  safetensors_file.write(path, tensors, {'format': 'pt'})
  loaded = reference.load_file(path)
  expected = arrays() | {'transposed': arrays()['shared.weight'].T}
  assert loaded.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(loaded[name], array)
  with safe_open(path, 'numpy') as file:
    assert file.metadata() == {'format': 'pt'}
  assert [p.name for p in tmp_path.iterdir()] == ['out.safetensors']


def test_shards(tmp_path):
  values, index = arrays(), {}
  for number, names in enumerate([['shared.weight', 'one'], ['scale']], 1):
    shard = f'model-0000{number}-of-00002.safetensors'
    reference.save_file({n: values[n] for n in names}, tmp_path / shard)
    index |= dict.fromkeys(names, shard)
  file = tmp_path / 'model.safetensors.index.json'

  def refuses(weight_map, message):
    file.write_text(json.dumps({'metadata': {}, 'weight_map': weight_map}))
    with pytest.raises(UserError, match=message):
      safetensors_file.read(tmp_path)

  refuses(index | {'scale': index['one']}, '00001.*has no tensor scale, which')
  refuses({'a': 1, 'b': 'c'}, 'model.safetensors.index.json')
  file.write_text(json.dumps({'metadata': {}, 'weight_map': index}))
  for path in (tmp_path, file):
    tensors = safetensors_file.read(path)
    assert tensors.keys() == index.keys()
    for name, shard in index.items():
      assert tensors[name].where == f'{tmp_path / shard}: {name}'
      np.testing.assert_array_equal(tensors[name].read(), values[name])
  (tmp_path / index['scale']).unlink()
  refuses(index, f'{index["scale"]} is missing.*Copy all shards')


def test_a_truncated_file(tmp_path):
  path = tmp_path / 'model.safetensors'
  reference.save_file(arrays(), path)
  tensors, whole = safetensors_file.read(path), path.read_bytes()
  # After its header was read.
  path.write_bytes(whole[:-200])
  with pytest.raises(UserError, match='shared.weight cannot be read'):
    tensors['shared.weight'].read()
  for content in (
      *(whole[:kept] for kept in (0, 7, 8, 100, -1)),
      b'PK\x03\x04' + b'\xff' * 100,
  ):
    path.write_bytes(content)
    with pytest.raises(UserError, match='is not a whole .*again'):
      safetensors_file.read(path)


@pytest.mark.parametrize(
    'header',
    [
        'not json',
        '{"a": 3}',
        *(
            f'{{"a": {{"dtype": {dtype}, "shape": {shape}, "data_offsets":'
            f' {offsets}}}}}'
            for dtype, shape, offsets in (
                ('"F32"', '[3]', '[0, 8]'),
                ('"F32"', '[2]', '[-8, 0]'),
                ('"F32"', '[2.0]', '[0, 8]'),
                ('["F32"]', '[2]', '[0, 8]'),
                ('"F32"', '[4611686018427387904, 0]', '[0, 0]'),
                ('"F32"', f'[{10**9}, {10**9}]', f'[0, {4 * 10**18}]'),
            )
        ),
        # Two at one place.
        '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},'
        ' "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        small_folders.DEEP,
    ],
)
def test_a_bad_header(tmp_path, header):
  path = tmp_path / 'model.safetensors'
  path.write_bytes(struct.pack('<Q', len(header)) + header.encode() + b'\0' * 8)
  with pytest.raises(UserError, match='safetensors is not a whole') as error:
    safetensors_file.read(path)
  assert len(str(error.value)) < 2000
  reference.save_file({'q.weight': np.zeros(3, np.int8)}, path)
  with pytest.raises(UserError, match='q.weight has the dtype I8; expected'):
    safetensors_file.read(path)


def test_one_tensor_in_memory_at_a_time(tmp_path):
  path = tmp_path / 'model.safetensors'
  array = np.ones((4, 1024, 1024), np.float32)  # 16 MiB
  reference.save_file({str(i): array for i in range(10)}, path)
  tracemalloc.start()
  try:
    safetensors_file.write(tmp_path / 'copy', safetensors_file.read(path))
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert array.nbytes <= peak < 40 * 2**20
  assert (tmp_path / 'copy').stat().st_size > 10 * array.nbytes
