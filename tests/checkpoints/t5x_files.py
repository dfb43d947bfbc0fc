"""Writes T5X's legacy format and reads its arrays, with no code of ours."""

import gzip
import json
import pathlib

from flax import serialization, traverse_util
import numpy as np
import tensorstore as ts

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'
LEGACY = 't5x_legacy/checkpoint_1000'
STATE = 't5x_orbax/checkpoint_1000/state'


def read_zarr(folder):
  """An array that is one chunk, compressed with gzip."""
  meta = json.loads((folder / '.zarray').read_text())
  assert meta['chunks'] == meta['shape']
  chunk = folder / '.'.join('0' for _ in meta['shape'])
  data = gzip.decompress(chunk.read_bytes())
  return np.frombuffer(data, meta['dtype']).reshape(meta['shape'])


def parameters(name):
  """Encoder and token embedder of a golden checkpoint by path."""
  return {
      folder.name.removeprefix('target.').replace('.', '/'): read_zarr(folder)
      for folder in sorted((GOLDEN / name / LEGACY).glob('target.*'))
  }


def write_legacy(folder, target, state=None, inline=(), spec=None, **others):
  """Writes a checkpoint as T5X lays it out.

  Args:
    folder: `checkpoint_<step>`.
    target: {path: array} of parameters.
    state: {path: array}, kept in the msgpack file.
    inline: paths of `target` that are kept in the msgpack file, too.
    spec: what a specification is in the msgpack file, of (name, metadata).
    **others: further parts of the tree.
  """
  folder.mkdir(parents=True)
  leaves = {('state', *k.split('/')): v for k, v in (state or {}).items()}
  for path, array in target.items():
    leaf = np.asarray(array)
    if path not in inline:
      leaf = _write_zarr(folder, f'target.{path.replace("/", ".")}', leaf, spec)
    leaves[('target', *path.split('/'))] = leaf
  tree = traverse_util.unflatten_dict(leaves) | others
  (folder / 'checkpoint').write_bytes(
      serialization.msgpack_serialize({'version': 3, 'optimizer': tree})
  )


def _write_zarr(folder, name, array, spec):
  metadata = {
      'shape': list(array.shape),
      'chunks': list(array.shape),
      'compressor': {'id': 'gzip', 'level': 1},
  }
  store = {
      'driver': 'zarr',
      'dtype': str(array.dtype),
      'kvstore': {'driver': 'file', 'path': f'{folder}/{name}/'},
      'metadata': metadata,
  }
  ts.open(store, create=True).result().write(array).result()
  if spec:
    return spec(name, metadata)
  return store | {'kvstore': {'driver': 'file', 'path': f'{name}/'}}
