"""Reads a legacy T5X checkpoint: a msgpack file and one zarr folder a tensor.

The msgpack file holds the tree. A leaf is an array, or the specification of the
zarr folder beside it in which the array lies, or, as the first Orbax wrote it,
the name of that folder.
"""

from collections.abc import Iterator, Mapping
import os
import re
from typing import Any

from etils import epath
from flax import serialization
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.io import json_file
from dualenc_jax.tensor_files import zarr_files
from dualenc_jax.tensor_files.tensors import Tensor

FILE = 'checkpoint'
_NAME_OF_FOLDER = 'PLACEHOLDER://'
# Whatever of the parameters is no decoder's.
_ENCODER = re.compile('target/(?!decoder/)')


def is_tree(folder: str | os.PathLike[str]) -> bool:
  """Whether a folder has a file `checkpoint` that begins as a msgpack map."""
  file = epath.Path(folder) / FILE
  if not file.is_file():
    return False
  with file.open('rb') as f:
    first = f.read(1)
  # Maps of up to 15 entries, of 16 bits and of 32 bits.
  return bool(first) and (first[0] >> 4 == 0x8 or first[0] in (0xde, 0xdf))


def read_tree(
    folder: str | os.PathLike[str],
) -> dict[str, Tensor | None]:
  """The tensors by path: 'target/encoder/...', 'state/param_states/...'.

  Args:
    folder: `checkpoint_1000`; local or gs://.

  Returns:
    None for those of a decoder or an optimizer whose shape was kept in a folder
    that is not there: they need not be copied to use an encoder.

  Raises:
    UserError: the msgpack file is missing, damaged or of another form.
  """
  folder = epath.Path(folder)
  file = folder / FILE
  try:
    tree = serialization.msgpack_restore(file.read_bytes())
  except Exception as e:  # msgpack's errors share no class.
    raise UserError(
        f'{file} cannot be read as msgpack: {zarr_files.first_line(e)}. A T5X'
        ' checkpoint has such a file beside its target.* folders; copy the'
        ' whole folder again.'
    ) from e
  if isinstance(tree, Mapping) and 'version' in tree:
    tree = tree.get('optimizer')
  if not isinstance(tree, Mapping) or 'target' not in tree:
    raise UserError(
        f'{file} is a msgpack file, but none of T5X: it has no parameters'
        ' (optimizer/target). Give a checkpoint that T5X wrote.'
    )
  return {
      path: _tensor(folder, path, leaf)
      for path, leaf in _leaves(tree)
  }


def _leaves(tree: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  if isinstance(tree, Mapping) and not {'driver', 'kvstore'} <= tree.keys():
    for key, child in tree.items():
      yield from _leaves(child, f'{path}/{key}' if path else str(key))
  elif tree is not None:
    yield path, tree


def _tensor(folder: epath.Path, path: str, leaf: Any) -> Tensor | None:
  where = f'{folder / FILE}: {path}'
  if isinstance(leaf, Mapping):
    # The path was beside the kvstore before it came to lie in it.
    zarr = folder / (leaf['kvstore'].get('path') or leaf['path']).strip('/')
    header = leaf['metadata']
  elif isinstance(leaf, str) and leaf.startswith(_NAME_OF_FOLDER):
    zarr = folder / leaf.removeprefix(_NAME_OF_FOLDER)
    if not _ENCODER.match(path) and not zarr.exists():
      return None
    header = _header(zarr, where)
  else:
    array = np.asarray(leaf)
    return Tensor(where, array.shape, lambda: array)
  if header.get('dtype') == '<u2':
    raise UserError(
        f'{zarr} holds bfloat16 in the form of uint16, as T5X wrote it before'
        ' June 2021. Load and save the checkpoint with T5X once.'
    )
  return zarr_files.tensor(
      f'{zarr}', tuple(header['shape']), zarr_files.spec(zarr)
  )


def _header(zarr: epath.Path, where: str) -> Mapping[str, Any]:
  again = f'{where} is kept there; copy the whole checkpoint again.'
  return json_file.read(zarr / '.zarray', again, shape=list)
