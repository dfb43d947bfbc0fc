"""Digests of tensors: what they are, on any mesh, and what they notice."""

import itertools
import re
import struct

import hlo
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import ml_dtypes
import numpy as np
import pytest

from dualenc_jax.tensor_files import digests, digests_on_devices as on_devices
from dualenc_jax.tensor_files.tensors import DamageError, Tensor

pytestmark = pytest.mark.devices(8)

MASK = 2**32 - 1
DTYPES = (
    'float32', 'bfloat16', 'float16', 'int32', 'uint32', 'int8', 'uint8',
    'int16', 'bool', 'complex64',
)


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
  size = struct.calcsize(form)
  data = array.tobytes()
  sums = [0, 0]
  for i, (word,) in enumerate(struct.iter_unpack(f'<{form}', data)):
    x = (word + i * 0x9E3779B9) & MASK
    x = (x ^ (x >> 16)) * 0x7FEB352D & MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & MASK
    x ^= x >> 16
    y = (x ^ (i * 0x85EBCA77 & MASK)) * 0xC2B2AE3D & MASK
    y ^= y >> 15
    sums = [(sums[0] + x) & MASK, (sums[1] + y) & MASK]
  assert len(data) % size == 0
  shape = ','.join(map(str, array.shape))
  return f'{array.dtype}[{shape}] {sums[0]:08x}{sums[1]:08x}'


def of_devices(array, name='a'):
  return on_devices.of_trees({'t': {name: array}})[0]['t'][name]


@pytest.mark.parametrize('dtype', DTYPES)
def test_it_is_what_the_module_says(dtype):
  for shape in ((), (1,), (0, 3), (7,), (5, 3, 2)):
    array = numbers(shape, dtype)
    assert digests.of_array(array) == by_hand(array)
  transposed = numbers((4, 6), dtype).T
  assert digests.of_array(transposed) == by_hand(transposed)
  # More than one block of NumPy.
  array = numbers((3, 2**15 - 1), dtype)
  assert digests.of_array(array) == of_devices(jnp.asarray(array))


@pytest.mark.parametrize('shape', [(), (0, 3), (5, 3, 2)])
def test_devices_take_any_shape(shape):
  array = numbers(shape)
  assert of_devices(jnp.asarray(array)) == by_hand(array)


@pytest.mark.parametrize('dtype', ['float64', 'int64', 'uint64'])
def test_elements_of_64_bits(dtype):
  array = numbers((5, 3), dtype)
  assert digests.of_array(array) == by_hand(array)
  with jax.enable_x64(True):
    assert of_devices(jnp.asarray(array)) == by_hand(array)


def mesh_of(*sizes):
  return jax.make_mesh(
      sizes, ('data', 'model')[: len(sizes)],
      axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
      devices=jax.devices()[: int(np.prod(sizes))],
  )


@pytest.mark.parametrize('sizes', [(2, 2), (4, 2)])
def test_on_any_mesh(sizes):
  mesh = mesh_of(*sizes)
  wanted, placed = {}, {}
  for i, (spec, dtype) in enumerate((
      (P(), 'float32'), (P('data'), 'bfloat16'), (P(None, 'model'), 'float32'),
      (P('model', 'data'), 'bfloat16'), (P(None, ('data', 'model')), 'float32'),
  )):
    array = numbers((8, 16), dtype, i)
    wanted[str(i)] = digests.of_array(array)
    placed[str(i)] = jax.device_put(array, NamedSharding(mesh, spec))
  found, _ = on_devices.of_trees({'x': placed})
  assert found == {'x': wanted}


def test_each_of_stacked_layers_has_its_own():
  array = numbers((8, 4, 8))
  mesh = mesh_of(8)
  for spec in (P(None, None, 'data'), P('data'), P()):
    spread = jax.device_put(array, NamedSharding(mesh, spec))
    tree = {'encoder': {'layers': {'w': spread}}}
    found, _ = on_devices.of_trees({'x': tree})
    assert found['x'] == {
        f'encoder/layers_{i}/w': digests.of_array(array[i]) for i in range(8)
    }
  shapes = digests.header('encoder/layers/w', array.dtype, array.shape)
  assert shapes == digests.listed(found['x'])


def test_nothing_but_sums_is_sent_and_it_is_compiled_once():
  mesh = mesh_of(4, 2)
  arrays = [
      jax.device_put(numbers((512, 256), seed=i), NamedSharding(mesh, spec))
      for i, spec in enumerate((P('data', 'model'), P(None, 'model'), P()))
  ]
  on_devices.of_trees({'x': arrays})
  mesh, specs = on_devices._placed(arrays)
  programs = [on_devices._of_one(False, mesh, spec) for spec in specs]
  together = on_devices._together(mesh)
  sizes = [p._cache_size() for p in (*programs, together)]
  on_devices.of_trees({'x': [2 * array for array in arrays]})
  assert sizes == [p._cache_size() for p in (*programs, together)]
  parts = []
  for program, array in zip(programs, arrays):
    compiled = program.lower(array).compile()
    assert not hlo.collectives(compiled.as_text())
    parts.append(compiled(array))
  compiled = together.lower(parts).compile()
  ((operation, shape),) = hlo.collectives(compiled.as_text())
  assert operation == 'all-reduce' and hlo.num_elements(shape) == 9


def test_every_flip_of_a_bit_is_noticed():
  rng = np.random.default_rng(1)
  for dtype in ('float32', 'bfloat16', 'int8'):
    array = numbers((2, 8), dtype)
    words = array.view(f'u{array.itemsize}').reshape(-1)
    seen = {digests.of_array(array)}
    flips = [
        [(i, b)] for i in range(16) for b in range(8 * array.itemsize)
    ]
    # Two signs, as well, which a plain sum would not see; and some of any.
    top = 8 * array.itemsize - 1
    flips += [
        [(i, top), (j, top)] for i, j in itertools.combinations(range(16), 2)
    ]
    flips += [
        [tuple(rng.integers(0, (16, top + 1))) for _ in range(3)]
        for _ in range(500)
    ]
    different = {tuple(np.array(words).tolist())}
    for flip in flips:
      changed = words.copy()
      for i, bit in flip:
        changed[i] ^= changed.dtype.type(1 << int(bit))
      different.add(tuple(changed.tolist()))
      seen.add(digests.of_array(changed.view(array.dtype).reshape(2, 8)))
    assert len(seen) == len(different)


def test_order_shape_and_dtype_count():
  array = numbers((2, 6))
  others = (
      array[::-1], array[:, ::-1], array.T, array.reshape(3, 4),
      array.view(np.int32), np.zeros((2, 6), np.float32),
      np.zeros((2, 6), np.int32), np.zeros((2, 7), np.float32),
  )
  assert len({digests.of_array(a) for a in (array, *others)}) == 9


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_is_not_finite_is_named(dtype):
  array = np.zeros((2, 3, 4), jnp.dtype(dtype))
  for value in (3e38, np.nan, np.inf, -np.inf):
    changed = array.copy()
    changed[1, 2, 3] = value
    tree = {'a': array, 'e': {'layers': {'b': changed}}}
    tree = jax.tree.map(jnp.asarray, tree)
    _, bad = on_devices.of_trees({'p': tree, 'o': [jnp.arange(4)]})
    assert bad == ['p: e/layers_1/b'] * (value != 3e38)


def test_tensors_are_compared_where_they_are_read():
  array = numbers((4, 3)).astype(np.float32) * 0 + 1
  now = [array]
  tensor = Tensor('file: w', (4, 3), lambda: now[0])
  known = {'w': digests.of_array(array)}
  checked = digests.verified({'w': tensor}, known, 'file')['w']
  views = (
      checked, checked.transposed(), checked.columns(2),
      checked.reshaped(12), checked.entry(1, 0),
  )
  for view in views:
    view.read()
  now[0] = array.copy()
  now[0][3, 2] = 1.0000001
  for view in views:
    with pytest.raises(DamageError, match=re.escape('file: w is not what')):
      view.read()
  with pytest.raises(DamageError, match='file: v was saved and is missing'):
    digests.verified({'w': tensor}, known | {'v': ''}, 'file')
  with pytest.raises(DamageError, match='file: w was not saved'):
    digests.verified({'w': tensor}, {}, 'file')
