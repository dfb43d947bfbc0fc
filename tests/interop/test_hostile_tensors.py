"""Files of tensors of strangers: refused, in no time and no memory."""

import bz2
import gzip
import json
import resource

from flax import serialization
import msgpack
import numpy as np
import pytest
from small_folders import ZARR

TREE = 'optimizer', 'target', 'encoder'
SCALE = *TREE, 'encoder_norm', 'scale'


@pytest.mark.parametrize('open_file', [gzip.open, bz2.open])
def test_a_chunk_that_is_a_bomb(refused, open_file):
  def damage(folder):
    header = folder / ZARR / '.zarray'
    facts = json.loads(header.read_text())
    facts['compressor']['id'] = 'gzip' if open_file is gzip.open else 'bz2'
    header.write_text(json.dumps(facts))
    with open_file(folder / ZARR / '0.0', 'wb', compresslevel=1) as file:
      for _ in range(128):
        file.write(bytes(2**20))

  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  refused('t5x', damage, 'embedding')
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Kilobytes: nothing near the 128 MB was unpacked.
  assert after - before < 100_000


def tree(*path, value):
  """Sets a value in the msgpack file; a function of what was there."""

  def damage(folder):
    file = folder / 'checkpoint_7/checkpoint'
    found = serialization.msgpack_restore(file.read_bytes())
    inner = found
    for key in path[:-1]:
      inner = inner.setdefault(key, {})
    is_function = callable(value)
    inner[path[-1]] = value(inner) if is_function else value
    file.write_bytes(serialization.msgpack_serialize(found))

  return damage


@pytest.mark.parametrize(
    'path, value, word',
    [
        ((*SCALE, 'kvstore'), 1, 'scale: kvstore is 1'),
        ((*SCALE, 'kvstore'), {'path': '../../x'}, 'its own folder'),
        (SCALE, 'PLACEHOLDER://../../x', 'its own folder'),
        ((*SCALE, 'metadata'), {'shape': [1.5]}, 'metadata: shape'),
        ((*SCALE, 'metadata'), {'shape': [10**12]}, 'the shape'),
        (SCALE, np.zeros(8, complex), 'complex128'),
        (('optimizer', 'state', 'step'), np.float32(np.nan), 'state/step'),
        ((*TREE, 'layers_999999999'), lambda e: e['layers_0'],
         'num_layers is 1,000,000,000'),
        ((*TREE, 'layers_' + '1' * 5000), lambda e: e['layers_0'], 'layers_1'),
        (('optimizer', 'target', *'a' * 200), 1, 'names within names'),
    ],
)
def test_msgpack(refused, path, value, word):
  refused('t5x', tree(*path, value=value), word)


def extension(shape, dtype='float32', data=b'1234'):
  """An array as Flax packs it."""
  return msgpack.ExtType(1, msgpack.packb((shape, dtype, data)))


@pytest.mark.parametrize(
    'content',
    [
        b'\xdf\xff\xff\xff\xff',
        b'\x81\xa1a' * 100_000 + b'\x01',
        *(
            msgpack.packb({'target': {'token_embedder': {'embedding': value}}})
            for value in (
                extension([10**13]),
                extension([1], 'O'),
                msgpack.ExtType(9, b'zz'),
            )
        ),
    ],
)
def test_msgpack_of_other_bytes(refused, content):
  def damage(folder):
    (folder / 'checkpoint_7/checkpoint').write_bytes(content)

  refused('t5x', damage, 'checkpoint_7')
