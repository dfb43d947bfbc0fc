"""Which tower it is: a SHA-256 of each of its parts.

Towers with equal digests give a text the same embedding, but for rounding, in
whatever form they were saved and whatever runs them.
"""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.inference.artifact.export import params_of_tower
from dualenc_jax.models import (
  describe,
  dot_product_attention,
  DualEncoder,
  einsum_attention,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.models.dual_encoder import class_name
from dualenc_jax.tensor_files.stacked_layers import unstack
from dualenc_jax.tensor_files.tensors import Tensor

_PARTS = ('token_embedder', 'encoder', 'projection')
# Attributes that change no more than how embeddings are rounded.
_OF_NO_EFFECT = {
    'dtype', 'dropout_rate', 'remat', 'residual_init', 'scan_layers'
}
# Those of a class of this library that its tensors tell.
_TOLD = {
    *('vocab_size', 'features', 'num_layers', 'num_heads', 'head_dim'),
    *('mlp_dim', 'num_buckets'),
}
# What every part is unless it says otherwise.
_SHIPPED = [
    *map(class_name, (DualEncoder, TokenEmbedder, T5Encoder, Projection)),
    *map(describe, (dot_product_attention, einsum_attention)),
]


def digest(
    tensors: Mapping[str, Tensor], model: Any, tower: str
) -> dict[str, str]:
  """SHA-256 of the parts of a tower.

  A part has the same whether its towers share it or not, whether its layers
  are stacked or not, and on any mesh. It is of the part's settings as JSON and
  then, in the order of their names, of the name and the shape of every tensor,
  as JSON, and its numbers, float32 with the least significant byte first.

  Args:
    tensors: of a dual encoder, by name; one at a time is read.
    model: the dual encoder.
    tower: 'query' or 'passage'.

  Returns:
    Hexadecimal digests by part: 'token_embedder', 'encoder', 'projection'; of a
    model of the user's own its parts, and 'model' for its class and settings.
  """
  parts = {part: {} for part in _PARTS}
  own = params_of_tower(tensors, tower)
  for name, tensor in unstack({n: tensors[n] for n in own}).items():
    name = name.removeprefix('passage_')
    parts.setdefault(name.partition('/')[0], {})[name] = tensor
  settings = _settings(model, tower)
  return {
      part: _digest(settings.get(part, {}), parts.get(part, {}))
      for part in sorted(parts | settings)
      if settings.get(part) or parts.get(part)
  }


def on_devices(params: Mapping[str, jax.Array]) -> dict[str, Tensor]:
  """Parameters by name as tensors, which come to the host when they are read.

  Args:
    params: on any mesh; every host that has a part of one reads, too.
  """
  return {
      name: Tensor(
          name,
          value.shape,
          lambda value=value: _fetch(value),
          lambda axis, i, value=value: _fetch(jnp.take(value, i, axis)),
      )
      for name, value in params.items()
  }


def _settings(model: Any, tower: str) -> dict[str, dict[str, Any]]:
  """What no tensor tells of each part, where it is not as usual."""
  described = describe(model)
  settings = {}
  for part in _PARTS:
    shared = described.pop(part, None)
    own = described.pop(f'passage_{part}', None)
    settings[part] = (own if tower == 'passage' else None) or shared or {}
  settings['model'] = described
  return {part: _unusual(facts) for part, facts in settings.items()}


def _unusual(facts: Mapping[str, Any]) -> dict[str, Any]:
  known = _OF_NO_EFFECT
  if facts.get('class') in _SHIPPED:
    known = known | _TOLD
  return {
      name: value
      for name, value in facts.items()
      if name not in known and value not in _SHIPPED
  }


def _digest(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
  found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
  for name, tensor in sorted(tensors.items()):
    found.update(json.dumps([name, *tensor.shape]).encode())
    # Not `read`: numbers that are not finite are told by texts, later.
    found.update(np.ascontiguousarray(tensor.load(), '<f4').reshape(-1))
  return found.hexdigest()


def _fetch(array: jax.Array) -> np.ndarray:
  """An array of any mesh on this host."""
  if not isinstance(array, jax.Array):
    return array
  if not (array.is_fully_addressable or array.is_fully_replicated):
    everywhere = NamedSharding(array.sharding.mesh, PartitionSpec())
    array = jax.jit(lambda x: x, out_shardings=everywhere)(array)
  if array.is_fully_replicated:
    array = array.addressable_data(0)
  # An array keeps the copy on the host that NumPy takes of it, a copy does not
  # outlive it.
  return np.asarray(jnp.copy(array))
