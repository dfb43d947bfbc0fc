"""Safetensors files, read and written a tensor at a time.

The library of that name reads them. It wants all tensors at once to write a
file, so this module writes: 8 bytes with the length of a JSON header, the
header, the numbers.
"""

from collections.abc import Mapping
import json
import math
import pathlib
import struct
from typing import Any

import numpy as np
import safetensors

from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

FILE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
_METADATA = '__metadata__'
_DTYPES = ('F32', 'F16', 'BF16', 'F64')


def read(path: pathlib.Path) -> dict[str, Tensor]:
  """The tensors of a .safetensors file, an index of shards, or their folder.

  Only headers are read, and no file is kept open or mapped.

  Raises:
    UserError: there is none, a file is damaged, a shard or one of its tensors
      is missing or lies outside of the folder, or a tensor has no floating
      dtype.
  """
  if path.is_dir():
    paths = [path / name for name in (FILE, INDEX) if (path / name).is_file()]
    if not paths:
      raise UserError(f'{path} has neither {FILE} nor {INDEX}.')
    path = paths[0]
  return _read_shards(path) if path.suffix == '.json' else _read_file(path)


def write(
    path: pathlib.Path, tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes tensors in float32, in their order, one in memory at a time.

  Args:
    path: the file, which appears whole.
    tensors: by name, read as they are written.
    metadata: strings for the header.

  Raises:
    UserError: a tensor or the file cannot be read or written.
  """
  header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
  end = 0
  for name, tensor in tensors.items():
    start, end = end, end + 4 * math.prod(tensor.shape)
    header[name] = {
        'dtype': 'F32', 'shape': tensor.shape, 'data_offsets': (start, end)
    }
  encoded = json.dumps(header).encode()
  encoded += b' ' * (-len(encoded) % 8)
  with files.writing(path), files.replacing(path) as file:
    file.write(struct.pack('<Q', len(encoded)) + encoded)
    for tensor in tensors.values():
      np.ascontiguousarray(tensor.read(), '<f4').tofile(file)


def metadata(path: pathlib.Path) -> dict[str, str]:
  """The metadata that `write` was given; {} for none."""
  try:
    with _open(path) as file:
      return file.metadata() or {}
  except safetensors.SafetensorError as e:
    raise _damaged(path, e) from e


def _read_shards(index: pathlib.Path) -> dict[str, Tensor]:
  shard_of = json_file.read(index, weight_map={str: str})['weight_map']
  tensors: dict[str, Tensor] = {}
  for shard in sorted(set(shard_of.values())):
    path = index.parent / untrusted.check_name(shard, f'{index}: a shard')
    if not path.is_file():
      raise UserError(
          f'{path} is missing, which {index.name} names. Copy all shards into'
          ' one folder.'
      )
    tensors |= (own := _read_file(path))
    for name, expected in shard_of.items():
      if expected == shard and name not in own:
        raise UserError(
            f'{path} has no tensor {name}, which {index.name} names. Copy the'
            ' index and all shards of one checkpoint.'
        )
  return tensors


def _read_file(path: pathlib.Path) -> dict[str, Tensor]:
  tensors = {}
  try:
    with _open(path) as file:
      for name in file.keys():
        entry = file.get_slice(name)
        if entry.get_dtype() not in _DTYPES:
          raise UserError(
              f'{path}: the tensor {name} has the dtype {entry.get_dtype()};'
              f' expected one of {", ".join(_DTYPES)}. Save a quantised model'
              ' in float32 first.'
          )
        tensors[name] = _tensor(path, name, tuple(entry.get_shape()))
  except safetensors.SafetensorError as e:
    raise _damaged(path, e) from e
  return tensors


def _tensor(path: pathlib.Path, name: str, shape: tuple[int, ...]) -> Tensor:
  def load() -> np.ndarray:
    try:
      with _open(path) as file:
        return file.get_tensor(name)
    except safetensors.SafetensorError as e:
      raise ValueError(e) from e

  return Tensor(f'{path}: {name}', shape, load)


def _open(path: pathlib.Path) -> Any:
  """Opens a file by the library, without a map of it."""
  try:
    untrusted.open_file(path).close()
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}.') from e
  return safetensors.safe_open(path, 'np', backend='pread')


def _damaged(path: pathlib.Path, error: Exception) -> UserError:
  return UserError(
      f'{path} is not a whole safetensors file: {untrusted.quote(str(error))}.'
      ' It is damaged or was cut off; copy it again.'
  )
