"""The digest of a tower: a SHA-256 of each of its parts.

Towers with equal digests give a text the same embedding up to rounding, in all
formats and on all devices.
"""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.models import (
  describe,
  dot_product_attention,
  DualEncoder,
  einsum_attention,
  GemmaEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.models.description import class_name
from dualenc_jax.retrieval.encoding.towers import params_of_tower
from dualenc_jax.utils.tensor_files.tensors import Tensor, unstack

_PARTS = ('token_embedder', 'encoder', 'projection')
# Attributes that change nothing but rounding.
_ROUNDING_ONLY = {
    'dtype', 'dropout_rate', 'init_std', 'remat', 'residual_init',
    'scan_layers',
}
# Attributes of this library's classes that follow from their tensors. No tensor
# of a Gemma shows where its joined heads are divided.
_IMPLIED = {
    *('vocab_size', 'features', 'num_layers', 'num_heads', 'head_dim'),
    *('mlp_dim', 'num_buckets', 'bias_per_layer', 'hidden'),
}
_IMPLIED_OF_GEMMA = {'num_layers', 'mlp_dim', 'signal_dim', 'layer_scale'}
# Defaults of every part.
_DEFAULTS = [
    *map(class_name, (DualEncoder, TokenEmbedder, T5Encoder, Projection)),
    *map(describe, (dot_product_attention, einsum_attention)),
]


def digest(
    tensors: Mapping[str, Tensor], model: Any, tower: str
) -> dict[str, str]:
  """SHA-256 of the parts of a tower.

  A digest does not depend on sharing between towers, stacking of layers or the
  mesh. It covers the part's settings as JSON and then, in the order of names,
  the name and shape of every tensor as JSON and its numbers, float32 with the
  least significant byte first.

  Args:
    tensors: of a dual encoder, by name; read one at a time.
    model: the dual encoder.
    tower: 'query' or 'passage'.

  Returns:
    Hexadecimal digests by part: 'token_embedder', 'encoder', 'projection', or
    the parts of a user's own model, and 'model' for its class and settings.
  """
  parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
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


def device_tensors(params: Mapping[str, jax.Array]) -> dict[str, Tensor]:
  """Wraps parameters on any mesh as tensors that come to the host when read.

  All hosts that hold a part of a tensor must read it together.
  """

  def tensor(name: str, value: jax.Array) -> Tensor:
    return Tensor(
        name,
        value.shape,
        lambda: _fetch(value),
        lambda axis, i: _fetch(jnp.take(value, i, axis)),
    )

  return {name: tensor(name, value) for name, value in params.items()}


def _settings(model: Any, tower: str) -> dict[str, dict[str, Any]]:
  """Settings of each part that are neither default nor seen in tensors."""
  described = describe(model)
  settings = {}
  for part in _PARTS:
    shared = described.pop(part, None)
    own = described.pop(f'passage_{part}', None)
    settings[part] = (own if tower == 'passage' else None) or shared or {}
  settings['model'] = described
  return {part: _without_defaults(facts) for part, facts in settings.items()}


def _without_defaults(facts: Mapping[str, Any]) -> dict[str, Any]:
  known = _ROUNDING_ONLY
  if facts.get('class') == class_name(GemmaEncoder):
    known = known | _IMPLIED_OF_GEMMA
  elif facts.get('class') in _DEFAULTS:
    known = known | _IMPLIED
  return {
      name: value
      for name, value in facts.items()
      if name not in known and value not in _DEFAULTS
  }


def _digest(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
  found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
  for name, tensor in sorted(tensors.items()):
    found.update(json.dumps([name, *tensor.shape]).encode())
    # Unlike `read`, `load` takes numbers that are not finite; they are reported
    # later, with the texts.
    found.update(np.ascontiguousarray(tensor.load(), '<f4').reshape(-1).data)
  return found.hexdigest()


def _fetch(array: jax.Array) -> np.ndarray:
  """Fetches an array of any mesh to this host."""
  if not isinstance(array, jax.Array):
    return array
  if not (array.is_fully_addressable or array.is_fully_replicated):
    assert isinstance(array.sharding, NamedSharding)
    everywhere = NamedSharding(array.sharding.mesh, PartitionSpec())
    array = jax.jit(lambda x: x, out_shardings=everywhere)(array)
  if array.is_fully_replicated:
    array = array.addressable_data(0)
  # An array keeps the host copy that NumPy takes of it; its own copy is freed.
  return np.asarray(jnp.copy(array))
