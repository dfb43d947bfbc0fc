"""A codec on disk: codec.safetensors, its arrays and a plan of them as JSON."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.retrieval.compression import quantisers
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.utils import finite, json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

FILE = 'codec.safetensors'
_FORMAT = 'dualenc-codec'
_AGAIN = 'Make the index again: `dualenc encode --codec`.'
_PLAN = {
    'name': str,
    'dim': int,
    'rescored': int | None,
    'parts': [{'class': str}],
}
_PARTS = {
    part.__name__: part for part in (
        Linear, Product, quantisers.Floats, quantisers.Int8, quantisers.Levels,
        quantisers.Signs, quantisers.Hamming,
    )
}


def write(path: pathlib.Path, codec: Codec) -> None:
  """Writes a codec, whole or not at all."""
  tensors, parts = {}, []
  names: dict[int, str] = {}
  for i, part in enumerate([*codec.transforms, codec.quantiser]):
    facts: dict[str, Any] = {'class': type(part).__name__}
    for field in dataclasses.fields(part):
      value, name = getattr(part, field.name), f'{i}/{field.name}'
      if not hasattr(value, 'shape'):
        facts[field.name] = value
      elif id(value) in names:
        facts[field.name] = {'tensor': names[id(value)]}
      else:
        names[id(value)] = name
        facts[field.name] = {'tensor': name}
        array = np.asarray(value, np.float32)
        read = functools.partial(np.asarray, array)
        tensors[name] = Tensor(name, array.shape, read)
    parts.append(facts)
  plan = {
      'name': codec.name,
      'dim': codec.dim,
      'rescored': codec.rescored,
      'parts': parts,
  }
  safetensors_file.write(
      path, tensors, {'format': _FORMAT, 'codec': json.dumps(plan)}
  )


def read(path: pathlib.Path) -> tuple[Codec, str]:
  """Reads what `write` wrote: the codec, and the SHA-256 of its file."""
  if not path.is_file():
    raise UserError(f'{path} does not exist. {_AGAIN}')
  found = safetensors_file.metadata(path)
  if not isinstance(found, dict) or found.get('format') != _FORMAT:
    raise UserError(f'{path} is not a codec of an index. {_AGAIN}')
  tensors = safetensors_file.read(path)
  arrays = {name: tensor.read() for name, tensor in tensors.items()}
  plan = json_file.parse(found.get('codec') or '', path, _AGAIN)
  json_file.check(plan, _PLAN, path, _AGAIN)
  try:
    *transforms, quantiser = [_part(facts, arrays) for facts in plan['parts']]
  except (KeyError, TypeError, ValueError) as e:
    raise UserError(f'{path} is damaged: {e!r}. {_AGAIN}') from e
  codec = Codec(
      plan['name'], plan['dim'], transforms, quantiser, plan['rescored']
  )
  check(codec, str(path), _AGAIN)
  return codec, hashlib.sha256(path.read_bytes()).hexdigest()


def check(codec: Codec, where: str, again: str) -> None:
  """Checks that the parts of a codec from a file fit together.

  Raises UserError for impossible shapes, sizes and numbers. It begins with
  `where`, which names the file, and ends with `again`, the remedy.
  """

  def damaged(what: str) -> UserError:
    return UserError(f'{where} is damaged: {what}. {again}')

  dim = codec.dim
  if codec.rescored is not None and codec.rescored < 1:
    raise damaged(f'rescored is {codec.rescored}; expected 1 or more')
  for number, part in enumerate([*codec.transforms, codec.quantiser]):
    name = f'part {number}, {type(part).__name__},'
    is_last = part is codec.quantiser
    if is_last == isinstance(part, Linear):
      raise damaged(f'{name} cannot be there')
    for field, ndim in _ARRAYS.get(type(part), {}).items():
      array = getattr(part, field)
      shape = getattr(array, 'shape', ())
      if len(shape) != ndim or 0 in shape:
        raise damaged(f'{name} has a {field} of shape {shape}')
      finite.check_tensor(f'{where}: {name} {field}', array, again)
    if not _is_sound(part):
      raise damaged(f'{name} has shapes or sizes that do not fit')
    own = part.matrix.shape[1] if isinstance(part, Linear) else part.dim
    if own != dim:
      raise damaged(f'{name} takes vectors of dim {own}, not {dim}')
    dim = part.dim


# Axes of the arrays of each part.
_ARRAYS = {
    Linear: {'matrix': 2},
    Product: {'assign': 3, 'score': 3},
    quantisers.Int8: {'low': 1, 'step': 1},
    quantisers.Levels: {'levels': 1},
}


def _is_sound(part: Any) -> bool:
  """Whether the fields of a part go together."""
  match part:
    case Linear(normalise=normalise):
      return isinstance(normalise, bool)
    case Product(assign=assign, score=score):
      return assign.shape == score.shape and 1 < len(score[0]) <= 256
    case quantisers.Int8(low=low, step=step):
      return low.shape == step.shape
    case quantisers.Levels(levels=levels, dim=dim, bits=bits):
      sizes = type(dim) is type(bits) is int and 1 <= bits <= 8
      return sizes and dim > 0 and len(levels) == 2**bits
    case quantisers.Floats(dim=dim, dtype=dtype):
      known = dtype in ('float32', 'float16', 'bfloat16')
      return type(dim) is int and dim > 0 and known
  return type(part.dim) is int and part.dim > 0


def _part(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
  # A field of null has its default.
  facts = {name: x for name, x in facts.items() if x is not None}
  kind = _PARTS[facts.pop('class')]
  for name, value in facts.items():
    if isinstance(value, dict):
      facts[name] = arrays[value['tensor']]
  return kind(**facts)
