"""Arrays in zarr folders, and the trees of them that are Orbax checkpoints.

Each is read whole or one entry of an axis at a time.
"""

from collections.abc import Mapping
import functools
import json
import os
from typing import Any

from etils import epath
import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from dualenc_jax.tensor_files.tensors import DamageError, Tensor

ReadablePath = str | os.PathLike[str]
_METADATA = '_METADATA'


def kvstore(path: ReadablePath) -> dict[str, Any]:
  """Where TensorStore finds a local folder or one of gs://."""
  path = os.fspath(epath.Path(path))
  if path.startswith('gs://'):
    bucket, _, inside = path.removeprefix('gs://').partition('/')
    return {'driver': 'gcs', 'bucket': bucket, 'path': f'{inside}/'}
  return {'driver': 'file', 'path': f'{os.path.abspath(path)}/'}


def spec(folder: ReadablePath) -> dict[str, Any]:
  """TensorStore's specification of a zarr folder.

  T5X and Orbax store every chunk, so that one which is missing has been lost:
  reading it is an error, where zarr would take it for zeros.
  """
  return {
      'driver': 'zarr',
      'kvstore': kvstore(folder),
      'fill_missing_data_reads': False,
  }


def tensor(
    where: str, shape: tuple[int, ...], specification: Mapping[str, Any]
) -> Tensor:
  """A tensor of which any entry can be read without the others.

  Args:
    where: the file and the name of the tensor, for messages.
    shape: of the array.
    specification: as `spec` makes it.
  """
  return Tensor(
      where,
      shape,
      functools.partial(_read, specification),
      functools.partial(_read, specification),
  )


def first_line(error: BaseException) -> str:
  """What went wrong, without the specification that TensorStore appends."""
  line = (str(error).splitlines() or [type(error).__name__])[0]
  return line.split(' [tensorstore_spec=')[0].split(' [source locations')[0]


def _read(
    specification: Mapping[str, Any], axis: int = 0, entry: int | None = None
) -> np.ndarray:
  part = () if entry is None else (slice(None),) * axis + (entry,)
  try:
    array = ts.open(dict(specification), open=True, read=True).result()
    return array[part].read().result()
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise ValueError(first_line(e)) from e


def is_tree(folder: ReadablePath) -> bool:
  """Whether a folder is an item of an Orbax checkpoint that holds tensors."""
  return (epath.Path(folder) / _METADATA).is_file()


def has_key(folder: ReadablePath, key: str) -> bool:
  """Whether the tree of such an item has a key, told without reading it all."""
  return f'"(\'{key}\',' in (epath.Path(folder) / _METADATA).read_text()


def read_tree(folder: ReadablePath) -> dict[str, Tensor]:
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
  # Orbax reads no relative path; that of a bucket is left as it is.
  absolute = os.fspath(folder)
  if '://' not in absolute:
    absolute = os.path.abspath(absolute)
  try:
    facts = json.loads((folder / _METADATA).read_text())
    leaves = jax.tree_util.tree_leaves_with_path(
        ocp.PyTreeCheckpointHandler().metadata(epath.Path(absolute)).tree
    )
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise DamageError(
        f'The Orbax checkpoint {folder} cannot be opened:'
        f' {first_line(e)}. Files are missing or damaged; copy the'
        ' folder again.'
    ) from e
  changes = {'driver': 'zarr3'} if facts.get('use_zarr3', False) else {}
  in_one = facts.get('use_ocdbt', (folder / 'manifest.ocdbt').exists())
  tensors = {}
  for path, leaf in leaves:
    if not hasattr(leaf, 'shape'):
      continue
    if in_one:
      base, inner = kvstore(folder), f'{leaf.name}/'
      changes['kvstore'] = {'driver': 'ocdbt', 'base': base, 'path': inner}
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    where, shape = f'{folder}: {name}', tuple(leaf.shape)
    tensors[name] = tensor(where, shape, spec(folder / leaf.name) | changes)
  return tensors
