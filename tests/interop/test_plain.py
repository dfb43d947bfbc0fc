"""Plain tensors: NumPy reads them; damage is one clear error."""

import json
import random
import shutil
import zipfile

import numpy as np
import pytest
import tiny_towers
import tiny_weights

from dualenc_jax.errors import UserError
from dualenc_jax.interop import plain
from dualenc_jax.interop.weights import Usage

NAME = 'encoder/layers_0/mlp/wo/kernel'


@pytest.fixture(scope='module')
def weights():
  usage = Usage(None, None, 12, None, 'find: ', '')
  return tiny_weights.random(tiny_towers.model(apart=True), usage)


@pytest.fixture(scope='module')
def arrays(weights):
  return {name: tensor.read() for name, tensor in weights.tensors.items()}


@pytest.fixture(scope='module')
def written(weights, tmp_path_factory):
  folder = tmp_path_factory.mktemp('npz')
  plain.write_npz(weights, folder)
  return folder


@pytest.fixture
def copied(written, tmp_path):
  return shutil.copytree(written, tmp_path / 'copy')


def read_all(folder):
  tensors = plain.read(folder).tensors
  return {name: tensor.read() for name, tensor in tensors.items()}


def test_numpy_reads_it_and_it_comes_back(weights, arrays, written):
  with np.load(written / 'weights.npz') as archive:
    assert set(archive) == arrays.keys()
    for name, array in arrays.items():
      np.testing.assert_array_equal(archive[name], array)
  back = plain.read(written)
  assert (back.usage, back.step) == (weights.usage, 7)
  tiny_weights.assert_same(back, weights)


def offsets_of(path, name):
  """Where the .npy header and the numbers of an array begin in the file."""
  with zipfile.ZipFile(path) as archive, path.open('rb') as file:
    info = archive.getinfo(f'{name}.npy')
    file.seek(info.header_offset + 26)
    lengths = np.frombuffer(file.read(4), '<u2')
    header = info.header_offset + 30 + int(lengths.sum())
    file.seek(header + 8)
    return header, header + 10 + int(np.frombuffer(file.read(2), '<u2')[0])


@pytest.mark.parametrize(
    'place, old, new',
    [
        (lambda header, numbers: numbers + 99, None, b'\x17\x5e'),
        # Half as many bytes, which no checksum is reached by.
        (lambda header, numbers: header + 21, b'<f4', b'<f2'),
        (lambda header, numbers: header, b'\x93', b'\0'),
    ],
    ids=['numbers', 'dtype', 'magic'],
)
def test_a_damaged_array(copied, place, old, new):
  path = copied / 'weights.npz'
  whole = bytearray(path.read_bytes())
  at = place(*offsets_of(path, NAME))
  found = bytes(whole[at : at + len(new)])
  assert found != new and old in (None, found)
  whole[at : at + len(new)] = new
  path.write_bytes(whole)
  with pytest.raises(UserError, match='weights.npz.*copy it again'):
    read_all(copied)


def test_flipped_bits_anywhere(copied, arrays):
  """Of each, either nothing changes or it is an error."""
  path = copied / 'weights.npz'
  whole = path.read_bytes()
  begins = [offsets_of(path, name)[0] for name in arrays]
  rng = random.Random(0)
  # Headers, and the directory at the end, before numbers.
  places = [begin + rng.randrange(-60, 90) for begin in begins]
  places += [rng.randrange(len(whole) - 2500, len(whole)) for _ in range(60)]
  refused = 0
  for place in places:
    damaged = bytearray(whole)
    damaged[place] ^= 1 << rng.randrange(8)
    path.write_bytes(damaged)
    try:
      found = read_all(copied)
    except UserError:
      refused += 1
      continue
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
      np.testing.assert_array_equal(found[name], array)
  assert refused > len(places) // 4


@pytest.mark.parametrize(
    'change',
    [
        lambda h: h.pop('encoder'),
        lambda h: h.pop('passage_encoder'),
        lambda h: h.pop('step'),
        lambda h: [h.pop('query_prefix')],
        lambda h: h.update(encoder=None),
        lambda h: h.update(step='3'),
        lambda h: h.update(passage_prefix=None),
        lambda h: h['encoder'].update(activations=['gemu', 'linear']),
        lambda h: h['passage_encoder'].update(activations=[1]),
        lambda h: h['encoder'].update(activations=[]),
        lambda h: h['passage_encoder'].update(num_layers='2'),
        lambda h: h['encoder'].update(num_heads=0),
        lambda h: h['encoder'].update(head_dim=16.5),
        lambda h: h['encoder'].update(mlp_din=64),
        lambda h: '[]',
        lambda h: json.dumps(h)[:50],
    ],
)
def test_a_damaged_header(copied, change):
  path = copied / 'towers.json'
  header = json.loads(path.read_text())
  replaced = change(header)
  path.write_text(replaced if isinstance(replaced, str) else json.dumps(header))
  with pytest.raises(UserError, match='towers.json.*again'):
    plain.read(copied)
