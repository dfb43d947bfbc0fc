"""Plain tensors: their library reads them, and they come back."""


import numpy as np
from safetensors.numpy import load_file
import tiny_towers
import tiny_weights

from dualenc_jax.interop import plain
from dualenc_jax.interop.weights import Usage


def test_their_library_reads_them_and_they_come_back(tmp_path):
  usage = Usage(None, None, 12, None, 'find: ', '')
  weights = tiny_weights.random(tiny_towers.model(apart=True), usage)
  plain.write(weights, tmp_path)
  arrays = load_file(tmp_path / 'weights.safetensors')
  assert arrays.keys() == weights.tensors.keys()
  for name, array in arrays.items():
    np.testing.assert_array_equal(array, weights.tensors[name].read())
  back = plain.read(tmp_path)
  assert (back.usage, back.step) == (weights.usage, 7)
  tiny_weights.assert_same(back, weights)
