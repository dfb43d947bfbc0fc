"""An artifact read as a checkpoint gives the model that was written."""

from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_towers

from dualenc_jax.errors import UserError
from dualenc_jax.inference import artifact as serving
from dualenc_jax.interop import artifact as reader, loading


def test_the_model_comes_back_unless_a_file_has_changed(tmp_path):
  towers = tiny_towers.loaded(
      prefixes=('find: ', 'code: '), apart=True, scan_layers=True
  )
  folder = tmp_path / 'new'
  assert not reader.is_one(folder)
  serving.write(towers, folder)
  assert reader.is_one(folder)
  again = loading.load(reader.read(folder))
  assert again.tokenizer.prefixes == towers.tokenizer.prefixes
  assert again.tokenizer.query_length == 12
  expected = {}
  params = traverse_util.flatten_dict(jax.device_get(towers.params), sep='/')
  for name, value in params.items():
    stack, is_stacked, rest = name.partition('/layers/')
    if is_stacked:
      layers = {f'{stack}/layers_{i}/{rest}': x for i, x in enumerate(value)}
      expected |= layers
    else:
      expected[name] = value
  found = traverse_util.flatten_dict(jax.device_get(again.params), sep='/')
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value)
  encoder = towers.embedder.model.encoder.clone(scan_layers=False)
  assert again.embedder.model.encoder == encoder
  with (folder / 'weights.safetensors').open('ab') as file:
    file.write(b'!')
  with pytest.raises(UserError, match='weights.safetensors has'):
    reader.read(folder)
