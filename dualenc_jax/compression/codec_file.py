"""A codec on disk: codec.safetensors, its arrays and what they are."""

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.compression import quantisers
from dualenc_jax.compression.codec import Codec
from dualenc_jax.compression.product import Product
from dualenc_jax.compression.transforms import Linear
from dualenc_jax.errors import UserError
from dualenc_jax.tensor_files import safetensors_file
from dualenc_jax.tensor_files.tensors import Tensor

FILE = 'codec.safetensors'
_FORMAT = 'dualenc-codec'
_AGAIN = 'Make the index again: `dualenc encode --codec`.'
_PARTS = {
    part.__name__: part
    for part in (
        Linear,
        Product,
        quantisers.Floats,
        quantisers.Int8,
        quantisers.Levels,
        quantisers.Signs,
        quantisers.Hamming,
    )
}


def write(path: pathlib.Path, codec: Codec) -> None:
  """Writes a codec, whole or not at all."""
  tensors, parts, names = {}, [], {}
  for i, part in enumerate([*codec.transforms, codec.quantiser]):
    facts = {'class': type(part).__name__}
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
        tensors[name] = Tensor(name, array.shape, lambda array=array: array)
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
  """Reads what `write` wrote.

  Returns:
    The codec, and the SHA-256 of its file.

  Raises:
    UserError: there is none, it is damaged, or not a codec.
  """
  if not path.is_file():
    raise UserError(f'{path} cannot be read: it is not there. {_AGAIN}')
  found = safetensors_file.metadata(path)
  if found.get('format') != _FORMAT:
    raise UserError(f'{path} is no codec of an index. {_AGAIN}')
  tensors = safetensors_file.read(path)
  arrays = {name: tensor.read() for name, tensor in tensors.items()}
  try:
    plan = json.loads(found['codec'])
    *transforms, quantiser = [
        _part(facts, arrays) for facts in plan['parts']
    ]
    codec = Codec(
        plan['name'], plan['dim'], transforms, quantiser, plan['rescored']
    )
  except (KeyError, TypeError, ValueError) as e:
    raise UserError(f'{path} is damaged: {e!r}. {_AGAIN}') from e
  return codec, hashlib.sha256(path.read_bytes()).hexdigest()


def _part(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
  facts = dict(facts)
  kind = _PARTS[facts.pop('class')]
  for name, value in facts.items():
    if isinstance(value, dict):
      facts[name] = arrays[value['tensor']]
  return kind(**facts)
