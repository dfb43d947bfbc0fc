"""Legacy T5X checkpoints: a msgpack file and one zarr folder a tensor.

The msgpack file holds the tree. A leaf is an array, or the specification of the
zarr folder beside it in which the array lies, or, as the first Orbax wrote it,
the name of that folder.
"""

from collections.abc import Iterator, Mapping
import os
import pathlib
import re
from typing import Any

from etils import epath
from flax import serialization, traverse_util
import numpy as np
import tensorstore as ts

from dualenc_jax.checkpoints import weights as weights_lib
from dualenc_jax.checkpoints.weights import ENCODERS, infer_encoder, Weights
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import zarr_files
from dualenc_jax.utils.tensor_files.tensors import Tensor

FILE = 'checkpoint'
# The name in t5x_retrieval's dual encoders.
PROJECTION = 'projection_layer/kernel'
_NAME_OF_FOLDER = 'PLACEHOLDER://'
# All parameters except a decoder's.
_ENCODER = re.compile('target/(?!decoder/)')
# Limits of names within names, and of their letters, twice those of any T5.
_DEEPEST, _LONGEST = 32, 1000
_AGAIN = 'Copy the whole checkpoint again.'
# The version of T5X's format since June 2021.
_VERSION = 3
_CHUNK_BYTES = 16 * 2**20


def is_tree(folder: str | os.PathLike[str]) -> bool:
  """Whether a folder has a file `checkpoint` that begins as a msgpack map."""
  file = epath.Path(folder) / FILE
  if not untrusted.is_file(file):
    return False
  with untrusted.open_file(file) as f:
    first = f.read(1)
  # Maps of up to 15 entries, of 16 bits and of 32 bits.
  return bool(first) and (first[0] >> 4 == 0x8 or first[0] in (0xde, 0xdf))


def read_tree(folder: str | os.PathLike[str]) -> dict[str, Tensor | None]:
  """Opens tensors by path: 'target/encoder/...', 'state/param_states/...'.

  Args:
    folder: `checkpoint_1000`; local or gs://.

  Returns:
    The tensors; None for those of a decoder or an optimizer whose folder does
    not exist, as an encoder can be copied without them.
  """
  root = epath.Path(folder)
  file = root / FILE
  untrusted.check_folder(folder, 'Copy the whole folder again.')
  try:
    tree = serialization.msgpack_restore(file.read_bytes())
  except Exception as e:  # msgpack's errors share no class.
    raise UserError(
        f'{file} cannot be read as msgpack: {zarr_files.first_line(e)}.'
        f' {_AGAIN}'
    ) from e
  if isinstance(tree, Mapping) and 'version' in tree:
    tree = tree.get('optimizer')
  if not isinstance(tree, Mapping) or 'target' not in tree:
    raise UserError(
        f'{file} has no parameters (optimizer/target); expected a checkpoint'
        ' that T5X wrote.'
    )
  leaves = _iterate_leaves(tree, file)
  return {path: _open_tensor(root, path, leaf) for path, leaf in leaves}


def _iterate_leaves(
    tree: Any, file: epath.Path, path: str = ''
) -> Iterator[tuple[str, Any]]:
  if path.count('/') > _DEEPEST or len(path) > _LONGEST:
    raise UserError(
        f'{file} has names within names, more than {_DEEPEST} deep or longer'
        f' than {_LONGEST:,} letters, as {path[:60]}...'
    )
  if isinstance(tree, Mapping) and not {'driver', 'kvstore'} <= tree.keys():
    for key, child in tree.items():
      inner = f'{path}/{key}' if path else str(key)
      yield from _iterate_leaves(child, file, inner)
  elif tree is not None:
    yield path, tree


def _open_tensor(folder: epath.Path, path: str, leaf: Any) -> Tensor | None:
  where = f'{folder / FILE}: {path}'
  if isinstance(leaf, Mapping):
    # Older files have the path beside the kvstore.
    types = {'metadata': {'shape': [int]}, 'kvstore': {'path?': str}}
    json_file.check(leaf, types | {'path?': str}, where, _AGAIN)
    inner = leaf['kvstore'].get('path') or leaf.get('path', '')
  elif isinstance(leaf, str) and leaf.startswith(_NAME_OF_FOLDER):
    inner = leaf.removeprefix(_NAME_OF_FOLDER)
  else:
    try:
      array = np.asarray(leaf)
    except ValueError as e:
      raise UserError(f'{where} is not an array: {e}. {_AGAIN}') from e
    return Tensor(where, array.shape, lambda: array)
  zarr = folder / untrusted.check_name(inner.strip('/'), where, _AGAIN)
  if isinstance(leaf, Mapping):
    header = leaf['metadata']
  elif not _ENCODER.match(path) and not zarr.exists():
    return None
  else:
    header = json_file.read(zarr / zarr_files.HEADER, _AGAIN, shape=[int])
  if header.get('dtype') == '<u2':
    raise UserError(
        f'{zarr} holds bfloat16 as uint16, as T5X wrote it before June 2021.'
        ' Load and save the checkpoint with T5X once.'
    )
  return zarr_files.tensor(
      f'{zarr}', tuple(header['shape']), zarr_files.spec(zarr)
  )


def write(weights: Weights, folder: pathlib.Path) -> None:
  """Writes `folder/checkpoint_<step>`, one tensor at a time, in float32.

  It has the parameters and the step, no state of an optimizer. Where queries
  and passages share all parts, the names are those of t5x_retrieval (GTR,
  Sentence-T5); towers that differ have the names of `DualEncoder`. The step is
  0 where it is not known.
  """
  _check_activations(weights)
  step = weights.step or 0
  checkpoint = folder.absolute() / f'checkpoint_{step}'
  checkpoint.mkdir(parents=True)
  leaves = {}
  for name, tensor in weights.tensors.items():
    if weights.is_shared and name == weights_lib.PROJECTION:
      name = PROJECTION
    leaves[tuple(name.split('/'))] = _write_array(checkpoint, name, tensor)
  target = traverse_util.unflatten_dict(leaves)
  state = {'step': np.asarray(step, np.int32)}
  tree = {'version': _VERSION, 'optimizer': {'state': state, 'target': target}}
  # Last, so that a folder that is cut off is no checkpoint.
  (checkpoint / FILE).write_bytes(serialization.msgpack_serialize(tree))


def _check_activations(weights: Weights) -> None:
  """Raises UserError unless activations are those that readers infer."""
  for tower in ENCODERS:
    encoder = getattr(weights, tower)
    if encoder is None:
      continue
    own = tuple(encoder.activations)
    shown = infer_encoder(weights.tensors, None, tower).activations
    if own != shown:
      raise UserError(
          f"{weights} has the activations {' x '.join(own)} in its {tower}; a"
          ' T5X checkpoint does not name them, and readers expect'
          f" {' x '.join(shown)}. Convert it to another form."
      )


def _write_array(
    checkpoint: pathlib.Path, name: str, tensor: Tensor
) -> Mapping[str, Any]:
  """Writes one zarr folder; returns its specification with a relative path."""
  inner = f'target.{name.replace("/", ".")}'
  array = np.ascontiguousarray(tensor.read())
  rows = max(1, _CHUNK_BYTES * len(array) // array.nbytes)
  specification = {
      'driver': 'zarr',
      'dtype': 'float32',
      'kvstore': {'driver': 'file', 'path': f'{inner}/'},
      'metadata': {
          'shape': array.shape,
          'chunks': (min(rows, len(array)), *array.shape[1:]),
          'compressor': {'id': 'gzip', 'level': 1},
      },
  }
  try:
    out = ts.open(
        specification | {'kvstore': zarr_files.kvstore(checkpoint / inner)},
        create=True,
    ).result()
    out.write(array).result()
  except Exception as e:  # The error of a full disk has several classes.
    raise UserError(
        f'{checkpoint / inner} cannot be written: {zarr_files.first_line(e)}.'
        ' Make room there.'
    ) from e
  return ts.Spec(specification).to_json()
