"""Reads the tensors of an Orbax checkpoint, one at a time."""

import json
import os
from typing import Any

from etils import epath
import jax
import orbax.checkpoint as ocp

from dualenc_jax.tensor_files import zarr_array
from dualenc_jax.tensor_files.tensors import DamageError, Tensor

_METADATA = '_METADATA'


def is_tree(folder: str | os.PathLike[str]) -> bool:
  """Whether a folder is an item of an Orbax checkpoint that holds tensors."""
  return (epath.Path(folder) / _METADATA).is_file()


def has_key(folder: str | os.PathLike[str], key: str) -> bool:
  """Whether the tree of such an item has a key, told without reading it all."""
  return f'"(\'{key}\',' in (epath.Path(folder) / _METADATA).read_text()


def read_tree(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
  """The tensors of an Orbax PyTree item by path, 'encoder/layers_0/...'.

  Keys of dicts, fields of tuples and places in lists are joined by '/'; empty
  nodes and strings are passed over. Only metadata is read; each `Tensor` reads
  its own chunks when it is wanted.

  Args:
    folder: the item, `checkpoint_1000/state` of T5X or
      `checkpoints/1000/params` of this library; local or gs://.

  Raises:
    DamageError: it is no such item, or its metadata cannot be read.
  """
  folder = epath.Path(folder)
  if not is_tree(folder):
    raise DamageError(
        f'{folder} is no item of an Orbax checkpoint: it has no {_METADATA}.'
        ' Give a folder such as checkpoint_1000/state, with all of its files.'
    )
  try:
    facts = json.loads((folder / _METADATA).read_text())
    leaves = jax.tree_util.tree_leaves_with_path(
        ocp.PyTreeCheckpointHandler().metadata(_absolute(folder)).tree
    )
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise DamageError(
        f'The Orbax checkpoint {folder} cannot be opened:'
        f' {zarr_array.first_line(e)}. Files are missing or damaged; copy the'
        ' folder again.'
    ) from e
  names = {
      jax.tree_util.keystr(path, simple=True, separator='/'): leaf
      for path, leaf in leaves
      if hasattr(leaf, 'shape')
  }
  return {
      name: zarr_array.tensor(
          f'{folder}: {name}',
          tuple(leaf.shape),
          _spec(folder, facts, leaf.name),
      )
      for name, leaf in names.items()
  }


def _absolute(folder: epath.Path) -> epath.Path:
  """Orbax reads no relative path; that of a bucket is left as it is."""
  if '://' in os.fspath(folder):
    return folder
  return epath.Path(os.path.abspath(folder))


def _spec(
    folder: epath.Path, facts: dict[str, Any], name: str
) -> dict[str, Any]:
  spec = zarr_array.spec(folder / name)
  if facts.get('use_ocdbt', (folder / 'manifest.ocdbt').exists()):
    base = zarr_array.kvstore(folder)
    spec['kvstore'] = {'driver': 'ocdbt', 'base': base, 'path': f'{name}/'}
  if facts.get('use_zarr3', False):
    spec['driver'] = 'zarr3'
  return spec
