"""Arrays in zarr folders, and the trees of them that are Orbax checkpoints.

Each is read whole or one entry of an axis at a time.
"""

from collections.abc import Mapping
import functools
import os
from typing import Any

from etils import epath
import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.tensor_files.tensors import DamageError, Tensor

# The file of an array's metadata in its zarr folder.
HEADER = '.zarray'
ReadablePath = str | os.PathLike[str]
_METADATA = '_METADATA'


def kvstore(path: ReadablePath) -> dict[str, Any]:
  """Where TensorStore finds a local folder or one of gs://."""
  place = os.fspath(epath.Path(path))
  if place.startswith('gs://'):
    bucket, _, inside = place.removeprefix('gs://').partition('/')
    return {'driver': 'gcs', 'bucket': bucket, 'path': f'{inside}/'}
  return {'driver': 'file', 'path': f'{os.path.abspath(place)}/'}


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
  """A tensor, as `spec` specifies it, any entry of which can be read alone."""
  read = functools.partial(_read, shape, specification)
  return Tensor(where, shape, read, read)


def first_line(error: BaseException) -> str:
  """The first line of an error, without TensorStore's specification."""
  line = (str(error).splitlines() or [type(error).__name__])[0]
  return line.split(' [tensorstore_spec=')[0].split(' [source locations')[0]


def _read(
    shape: tuple[int, ...], specification: Mapping[str, Any],
    axis: int = 0, entry: int | None = None,
) -> np.ndarray:
  part = () if entry is None else (slice(None),) * axis + (entry,)
  try:
    _check_header(specification)
    array = ts.open(dict(specification), open=True, read=True).result()
    if array.shape == shape:
      _check_chunks(array)
      return array[part].read().result()
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise ValueError(first_line(e)) from e
  # Its shape is the error, which needs no memory for the numbers.
  return np.broadcast_to(np.float32(0), array.shape)


def _check_header(specification: Mapping[str, Any]) -> None:
  """Raises ValueError for a header that TensorStore hangs on."""
  store = specification['kvstore']
  name = 'zarr.json' if specification['driver'] == 'zarr3' else HEADER
  header = ts.KvStore.open(dict(store)).result().read(name).result()
  if header.state != 'value':
    raise ValueError(f'{name} is missing')
  json_file.parse(header.value, name)


def _check_chunks(array: ts.TensorStore) -> None:
  """Raises ValueError for chunks that are too large to unpack."""
  chunks = array.chunk_layout.read_chunk.shape or ()
  if any((c or 0) > max(size, 1) for c, size in zip(chunks, array.shape)):
    raise ValueError(f'its chunks {chunks} are larger than it, {array.shape}')


def is_tree(folder: ReadablePath) -> bool:
  """Whether a folder is an item of an Orbax checkpoint that holds tensors."""
  return untrusted.is_file(epath.Path(folder) / _METADATA)


def has_key(folder: ReadablePath, key: str) -> bool:
  """Whether the tree of such an item has a key, without reading it all."""
  content = json_file.read_text(epath.Path(folder) / _METADATA)
  return f'"(\'{key}\',' in content


def read_tree(folder: ReadablePath) -> dict[str, Tensor]:
  """The tensors of an Orbax PyTree item by path, 'encoder/layers_0/...'.

  Keys of dicts, fields of tuples and places in lists are joined by '/'; empty
  nodes and strings are passed over. Only metadata is read.

  Args:
    folder: the item, `checkpoint_1000/state` of T5X or
      `checkpoints/1000/params` of this library; local or gs://.

  Raises:
    DamageError: it is no such item, or its metadata cannot be read.
  """
  root = epath.Path(folder)
  if not is_tree(root):
    raise DamageError(
        f'{folder} is not an item of an Orbax checkpoint: it has no'
        f' {_METADATA}. Give a folder such as checkpoint_1000/state, with all'
        ' of its files.'
    )
  try:
    facts = json_file.read(root / _METADATA)
    untrusted.check_folder(root)
    return _tensors(root, facts)
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise DamageError(
        f'The Orbax checkpoint {folder} cannot be opened: {first_line(e)}.'
        ' Files are missing or damaged; copy the folder again.'
    ) from e


def _tensors(folder: epath.Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
  # Orbax reads no relative path; that of a bucket is left as it is.
  absolute = os.fspath(folder)
  if '://' not in absolute:
    absolute = os.path.abspath(absolute)
  leaves = jax.tree_util.tree_leaves_with_path(
      ocp.PyTreeCheckpointHandler().metadata(epath.Path(absolute)).tree
  )
  changes: dict[str, Any] = {}
  if facts.get('use_zarr3', False):
    changes['driver'] = 'zarr3'
  in_one = facts.get('use_ocdbt', (folder / 'manifest.ocdbt').exists())
  tensors = {}
  for path, leaf in leaves:
    if not hasattr(leaf, 'shape'):
      continue
    untrusted.check_name(leaf.name, f'{folder / _METADATA}: a name')
    if in_one:
      base, inner = kvstore(folder), f'{leaf.name}/'
      changes['kvstore'] = {'driver': 'ocdbt', 'base': base, 'path': inner}
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    where, shape = f'{folder}: {name}', tuple(leaf.shape)
    tensors[name] = tensor(where, shape, spec(folder / leaf.name) | changes)
  return tensors
