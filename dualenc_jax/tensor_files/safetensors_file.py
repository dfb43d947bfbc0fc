"""Safetensors files, read and written one tensor at a time.

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

from dualenc_jax.errors import UserError
from dualenc_jax.io import files, json_file, untrusted
from dualenc_jax.tensor_files.tensors import Tensor

FILE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
_METADATA = '__metadata__'
_DTYPES = {
    'F32': np.dtype('<f4'),
    'F16': np.dtype('<f2'),
    'BF16': np.dtype(ml_dtypes.bfloat16),
    'F64': np.dtype('<f8'),
}
# The format's own limit.
_LONGEST_HEADER = 100_000_000
# NumPy's.
_MOST_AXES = 64


def read(path: pathlib.Path) -> dict[str, Tensor]:
  """The tensors of a file, or of a folder's model.safetensors or its shards.

  Nothing but headers is read, and no file is kept open or mapped.

  Args:
    path: a .safetensors file, a .safetensors.index.json, or their folder.

  Raises:
    UserError: there is none, a file is damaged, a shard or one of its tensors
      is missing or lies outside of the folder, or a tensor has no floating
      dtype.
  """
  if path.is_dir():
    files = [path / name for name in (FILE, INDEX) if (path / name).is_file()]
    if not files:
      raise UserError(f'{path} has neither {FILE} nor {INDEX}.')
    path = files[0]
  return _read_shards(path) if path.suffix == '.json' else _read_file(path)


def write(
    path: pathlib.Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes tensors in float32, in their order, one in memory at a time.

  Args:
    path: of the file; it appears when all of it is written.
    tensors: by the names they get.
    metadata: of the header; transformers wants {'format': 'pt'}.

  Raises:
    UserError: a tensor cannot be read, or the file not written.
  """
  header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
  end = 0
  for name, tensor in tensors.items():
    start, end = end, end + 4 * math.prod(tensor.shape)
    header[name] = {
        'dtype': 'F32',
        'shape': tensor.shape,
        'data_offsets': (start, end),
    }
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
  """All tensors of the shards that an index names."""
  shard_of = json_file.read(index, weight_map={str: str})['weight_map']
  tensors = {}
  for shard in sorted(set(shard_of.values())):
    path = index.parent / untrusted.check_name(shard, f'{index}: a shard')
    if not path.is_file():
      raise UserError(
          f'{path} is missing, which {index.name} names. Copy all shards into'
          ' one folder.'
      )
    own = _read_file(path)
    for name, expected in shard_of.items():
      if expected == shard and name not in own:
        raise UserError(
            f'{path} has no tensor {name}, which {index.name} says it has. The'
            ' index and the shards must be of one checkpoint; copy them again.'
        )
    tensors |= own
  return tensors


def _read_file(path: pathlib.Path) -> dict[str, Tensor]:
  header, start = _read_header(path)
  header.pop(_METADATA, None)
  tensors, places = {}, []
  for name, entry in header.items():
    try:
      dtype, shape = entry['dtype'], tuple(entry['shape'])
      begin, stop = entry['data_offsets']
      sizes = *shape, begin, stop
      if not all(type(n) is int and 0 <= n < 2**63 for n in sizes):
        raise ValueError('sizes that are no whole numbers of 64 bits')
      if len(shape) > _MOST_AXES:
        raise ValueError('more axes than an array has')
      is_known = dtype in _DTYPES
    except (KeyError, TypeError, ValueError) as e:
      found = untrusted.shown(entry)
      raise _damaged(path, f'the header entry of {name} is {found}') from e
    if not is_known:
      raise UserError(
          f'{path}: the tensor {name} has the dtype {dtype}; expected one of'
          f' {", ".join(_DTYPES)}. A quantised model must be saved in float32'
          ' first.'
      )
    if stop - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
      raise _damaged(path, f'{name} lies at bytes {begin} to {stop}')
    tensors[name] = _tensor(path, name, _DTYPES[dtype], shape, start + begin)
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
  where = f'{path} is no whole safetensors file: its header'
  header = json_file.parse(content, where)
  return header, 8 + length


def _tensor(
    path: pathlib.Path,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    offset: int,
) -> Tensor:
  def load():
    flat = np.fromfile(path, dtype, math.prod(shape), offset=offset)
    return flat.reshape(shape)

  return Tensor(f'{path}: {name}', shape, load)


def _damaged(path: pathlib.Path, found: str) -> UserError:
  return UserError(
      f'{path} is no whole safetensors file: {found}. It is damaged or was cut'
      ' off; copy it again.'
  )
