"""Safetensors files, read and written a tensor at a time.

The library of that name maps a file, whose pages then count as memory of the
process, and wants all tensors at once to write one. The format is simple: 8
bytes with the length of a JSON header, the header, the numbers.
"""

from collections.abc import Mapping
import json
import math
import pathlib
import struct
from typing import Any

import ml_dtypes
import numpy as np

from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

FILE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
_METADATA = '__metadata__'
_ENTRY = {'dtype': str, 'shape': [int], 'data_offsets': [int]}
_DTYPES = {
    'F32': np.dtype('<f4'),
    'F16': np.dtype('<f2'),
    'BF16': np.dtype(ml_dtypes.bfloat16),
    'F64': np.dtype('<f8'),
}
# The format's own limit, and NumPy's.
_LONGEST_HEADER, _MOST_AXES = 100_000_000, 64


def read(path: pathlib.Path) -> dict[str, Tensor]:
  """The tensors of a .safetensors file, an index of shards, or their folder.

  Nothing but headers is read, and no file is kept open or mapped.

  Raises:
    UserError: there is none, a file is damaged, a shard or one of its tensors
      is missing or lies outside of the folder, or a tensor has no floating
      dtype.
  """
  if path.is_dir():
    found = [path / name for name in (FILE, INDEX) if (path / name).is_file()]
    if not found:
      raise UserError(f'{path} has neither {FILE} nor {INDEX}.')
    path = found[0]
  return _read_shards(path) if path.suffix == '.json' else _read_file(path)


def write(
    path: pathlib.Path, tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes tensors in float32, in their order, one in memory at a time.

  Args:
    path: of the file; it appears when all of it is written.
    tensors: by the names they get.
    metadata: of the header; transformers wants {'format': 'pt'}.
  """
  header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
  end = 0
  for name, tensor in tensors.items():
    start, end = end, end + 4 * math.prod(tensor.shape)
    values = 'F32', tensor.shape, (start, end)
    header[name] = dict(zip(_ENTRY, values))
  encoded = json.dumps(header).encode()
  encoded += b' ' * (-len(encoded) % 8)
  with files.writing(path), files.replacing(path) as file:
    file.write(struct.pack('<Q', len(encoded)) + encoded)
    for tensor in tensors.values():
      np.ascontiguousarray(tensor.read(), '<f4').tofile(file)


def metadata(path: pathlib.Path) -> dict[str, str]:
  """What `write` was given of it; {} for none."""
  found = _read_header(path)[0].get(_METADATA) or {}
  json_file.check(found, {str: str}, f'{path}: {_METADATA}', 'Copy it again.')
  return found


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
            f'{path} has no tensor {name}, which {index.name} says it has. The'
            ' index and the shards must be of one checkpoint; copy them again.'
        )
  return tensors


def _read_file(path: pathlib.Path) -> dict[str, Tensor]:
  header, start = _read_header(path)
  header.pop(_METADATA, None)
  tensors, places = {}, []
  for name, entry in header.items():
    shown = f'the header entry of {name} is {untrusted.shown(entry)}'
    try:
      json_file.check(entry, _ENTRY, name)
      shape, (begin, stop) = tuple(entry['shape']), entry['data_offsets']
    except (UserError, ValueError) as e:
      raise _damaged(path, shown) from e
    dtype = _DTYPES.get(entry['dtype'])
    if dtype is None:
      raise UserError(
          f'{path}: the tensor {name} has the dtype {entry["dtype"]}; expected'
          f' one of {", ".join(_DTYPES)}. A quantised model must be saved in'
          ' float32 first.'
      )
    if min(begin, *shape, 0) < 0 or len(shape) > _MOST_AXES:
      raise _damaged(path, shown)
    if stop - begin != math.prod(shape) * dtype.itemsize:
      raise _damaged(path, f'{name} lies at bytes {begin} to {stop}')
    tensors[name] = _tensor(path, name, dtype, shape, start + begin)
    places.append((begin, stop, name))
  end = 0
  for begin, stop, name in sorted(places):
    if begin != end:
      found = f'{name} lies at byte {begin}, and the one before ends at {end}'
      raise _damaged(path, found)
    end = stop
  size = path.stat().st_size
  if size != start + end:
    raise _damaged(path, f'it has {size:,} bytes, not {start + end:,}')
  return tensors


def _read_header(path: pathlib.Path) -> tuple[dict[str, Any], int]:
  """The header of a file, and where its numbers begin."""
  try:
    with untrusted.open_file(path) as file:
      (length,) = struct.unpack('<Q', file.read(8))
      if length > min(_LONGEST_HEADER, path.stat().st_size - 8):
        raise ValueError(f'a header of {length:,} bytes')
      content = file.read(length)
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}.') from e
  except (struct.error, ValueError) as e:
    raise _damaged(path, f'no header at its start ({e})') from e
  where = f'{path} is not a whole safetensors file: its header'
  return json_file.parse(content, where), 8 + length


def _tensor(
    path: pathlib.Path, name: str, dtype: np.dtype, shape: tuple[int, ...],
    offset: int,
) -> Tensor:
  def load() -> np.ndarray:
    flat = np.fromfile(path, dtype, math.prod(shape), offset=offset)
    return flat.reshape(shape)

  return Tensor(f'{path}: {name}', shape, load)


def _damaged(path: pathlib.Path, found: str) -> UserError:
  return UserError(
      f'{path} is not a whole safetensors file: {found}. It is damaged or was'
      ' cut off; copy it again.'
  )
