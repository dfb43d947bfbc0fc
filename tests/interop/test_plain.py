"""Plain tensors: their library reads them; damage is one clear error."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
import tiny_towers
import tiny_weights

from dualenc_jax.errors import UserError
from dualenc_jax.interop import plain
from dualenc_jax.interop.weights import Usage


@pytest.fixture(scope='module')
def weights():
  usage = Usage(None, None, 12, None, 'find: ', '')
  return tiny_weights.random(tiny_towers.model(apart=True), usage)


@pytest.fixture(scope='module')
def written(weights, tmp_path_factory):
  folder = tmp_path_factory.mktemp('plain')
  plain.write(weights, folder)
  return folder


def test_their_library_reads_them_and_they_come_back(weights, written):
  arrays = load_file(written / 'weights.safetensors')
  assert arrays.keys() == weights.tensors.keys()
  for name, array in arrays.items():
    np.testing.assert_array_equal(array, weights.tensors[name].read())
  back = plain.read(written)
  assert (back.usage, back.step) == (weights.usage, 7)
  tiny_weights.assert_same(back, weights)


@pytest.mark.parametrize(
    'change',
    [
        lambda h: h.pop('encoder'),
        lambda h: h.update(step='3'),
        lambda h: h.update(passage_prefix=None),
        lambda h: h['encoder'].update(activations=['gemu', 'linear']),
        lambda h: h['passage_encoder'].update(num_layers='2'),
        lambda h: h['encoder'].update(num_heads=0),
        lambda h: h['encoder'].update(mlp_din=64),
        lambda h: json.dumps(h)[:50],
    ],
)
def test_a_damaged_header(written, tmp_path, change):
  copied = shutil.copytree(written, tmp_path / 'copy')
  path = copied / 'towers.json'
  header = json.loads(path.read_text())
  replaced = change(header)
  path.write_text(replaced if isinstance(replaced, str) else json.dumps(header))
  with pytest.raises(UserError, match='towers.json.*again|(plain tensors)'):
    plain.read(copied)
