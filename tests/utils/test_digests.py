"""Digests of tensors: what they are, on any mesh, and what they notice."""

import re
import struct

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import ml_dtypes
import numpy as np
import pytest

from dualenc_jax.training import device_digests as on_devices
from dualenc_jax.utils.tensor_files import digests
from dualenc_jax.utils.tensor_files.tensors import DamageError, Tensor

pytestmark = pytest.mark.devices(8)

MASK = 2**32 - 1


def numbers(shape, dtype='float32', seed=0):
  """Random bits, as far as the type has them."""
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  rng = np.random.default_rng(seed)
  if dtype.kind == 'b':
    return rng.integers(0, 2, shape).astype(bool)
  return np.frombuffer(
      rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype
  ).reshape(shape)


def by_hand(array):
  """The digest in whole numbers of Python, an element at a time."""
  form = {1: 'B', 2: 'H'}.get(array.itemsize, 'I')
  sums = [0, 0]
  for i, (word,) in enumerate(struct.iter_unpack(f'<{form}', array.tobytes())):
    x = (word + i * 0x9E3779B9) & MASK
    x = (x ^ (x >> 16)) * 0x7FEB352D & MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & MASK
    x ^= x >> 16
    y = (x ^ (i * 0x85EBCA77 & MASK)) * 0xC2B2AE3D & MASK
    y ^= y >> 15
    sums = [(sums[0] + x) & MASK, (sums[1] + y) & MASK]
  shape = ','.join(map(str, array.shape))
  return f'{array.dtype}[{shape}] {sums[0]:08x}{sums[1]:08x}'


def of_devices(array):
  return on_devices.digest_trees({'t': {'a': array}})[0]['t']['a']


@pytest.mark.parametrize(
    'dtype', ['float32', 'bfloat16', 'int8', 'bool', 'int64']
)
def test_it_is_what_the_module_says(dtype):
  for shape in ((), (0, 3), (5, 3, 2)):
    array = numbers(shape, dtype)
    with jax.enable_x64(dtype == 'int64'):
      assert of_devices(jnp.asarray(array)) == by_hand(array)
    assert digests.compute_digest(array) == by_hand(array)
  transposed = numbers((4, 6), dtype).T
  assert digests.compute_digest(transposed) == by_hand(transposed)


def test_more_than_a_block_of_numpy():
  array = numbers((3, 2**15 - 1))
  assert digests.compute_digest(array) == of_devices(jnp.asarray(array))


def mesh_of(*sizes):
  return jax.make_mesh(
      sizes, ('data', 'model')[: len(sizes)],
      axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
  )


def test_on_any_mesh():
  mesh, wanted, placed = mesh_of(4, 2), {}, {}
  for i, (spec, dtype) in enumerate((
      (P(), 'float32'), (P('data'), 'bfloat16'), (P(None, 'model'), 'float32'),
      (P('model', 'data'), 'bfloat16'), (P(None, ('data', 'model')), 'float32'),
  )):
    array = numbers((8, 16), dtype, i)
    wanted[str(i)] = digests.compute_digest(array)
    placed[str(i)] = jax.device_put(array, NamedSharding(mesh, spec))
  found, _ = on_devices.digest_trees({'x': placed})
  assert found == {'x': wanted}


def test_each_of_stacked_layers_has_its_own():
  array = numbers((8, 4, 8))
  for spec in (P(None, None, 'data'), P('data'), P()):
    spread = jax.device_put(array, NamedSharding(mesh_of(8), spec))
    tree = {'encoder': {'layers': {'w': spread}}}
    found, _ = on_devices.digest_trees({'x': tree})
    assert found['x'] == {
        f'encoder/layers_{i}/w': digests.compute_digest(array[i])
        for i in range(8)
    }
  shapes = digests.layer_headers('encoder/layers/w', array.dtype, array.shape)
  assert shapes == digests.parse_headers(found['x'])


def test_what_is_not_finite_is_named():
  array = np.zeros((2, 3, 4), jnp.bfloat16)
  for value in (3e38, np.nan, -np.inf):
    changed = array.copy()
    changed[1, 2, 3] = value
    tree = {'a': array, 'e': {'layers': {'b': changed}}}
    tree = jax.tree.map(jnp.asarray, tree)
    _, bad = on_devices.digest_trees({'p': tree, 'o': [jnp.arange(4)]})
    assert bad == ['p: e/layers_1/b'] * (value != 3e38)


def test_tensors_are_compared_where_they_are_read():
  now = [np.ones((4, 3), np.float32)]
  tensor = Tensor('file: w', (4, 3), lambda: now[0])
  known = {'w': digests.compute_digest(now[0])}
  checked = digests.verify_on_read({'w': tensor}, known, 'file')['w']
  views = (
      checked, checked.transposed(), checked.columns(2),
      checked.reshaped(12), checked.entry(1, 0),
  )
  for view in views:
    view.read()
  now[0] = now[0].copy()
  now[0][3, 2] = 1.0000001
  for view in views:
    with pytest.raises(DamageError, match=re.escape('file: w is not what')):
      view.read()
  with pytest.raises(DamageError, match='file: v was saved and is missing'):
    digests.verify_on_read({'w': tensor}, known | {'v': ''}, 'file')
  with pytest.raises(DamageError, match='file: w was not saved'):
    digests.verify_on_read({'w': tensor}, {}, 'file')
