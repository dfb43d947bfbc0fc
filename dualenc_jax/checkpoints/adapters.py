"""Adapters (LoRA) of a model_dir, and the base that they were trained on.

A checkpoint holds adapters A [E, r] and B [r, F] of kernels [E, F], parameters
that were trained in full, and where the base is, with a digest of each of its
tensors. The base has any form.
"""

from collections.abc import Callable, Mapping
import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.models.layers import ADAPTER
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

# The part of the parameters, and the field of `meta`.
GROUP = 'lora'
# Another place of the base, in the model_dir: a copy of it, or a link.
_BASE = 'base'
# The types of the field.
FACTS: dict[str, Any] = {
    'rank': int,
    'factor': float,
    'base': str,
    'step': int | None,
    # By the name of a parameter, the tensor of the base that it is.
    'tensors': {str: {'source': str, 'sha256': str}},
}


def watch(tensor: Tensor, see: Callable[[str], None]) -> Tensor:
  """A tensor whose digest goes to `see` when it is read: that of float32."""

  def load() -> np.ndarray:
    array = tensor.read()
    see(hashlib.sha256(np.ascontiguousarray(array, '<f4').data).hexdigest())
    return array

  return dataclasses.replace(tensor, load=load, load_at=None)


def fold(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any],
    model_dir: pathlib.Path, read: Callable[..., Weights],
) -> dict[str, Tensor]:
  """The tensors of the whole model: W + alpha / r A B, and all others.

  Products and sums are in float64, the result in float32. A tensor of the base
  is compared with its digest whenever it is read, by a UserError.

  Args:
    tensors: those of the checkpoint, one for each layer.
    facts: the field of its `meta`.
    model_dir: its run.
    read: `formats.read`.
  """
  own, path, step = model_dir / _BASE, facts['base'], facts['step']
  if own.exists():
    path = str(own)
  elif '://' not in path and not pathlib.Path(path).exists():
    raise UserError(
        f'{model_dir} has adapters alone, and their base, {path}, does not'
        f' exist. Move it back, or put a link to it at {own}.'
    )
  if step is not None and not _has_step(pathlib.Path(path), step):
    # A copy of that step alone, in any form, has the same tensors.
    step = None
  weights, saved = read(hub.model(path), step), facts['tensors']
  base = {**weights.tensors, **weights.loss}
  if any(known['source'] not in base for known in saved.values()):
    base |= weights.read_decoder()
  whole = {n: t for n, t in tensors.items() if not n.startswith(f'{GROUP}/')}
  for name, known in saved.items():
    source = known['source']
    check = checker(model_dir, path, **known)
    if source not in base:
      check('')
    tensor = watch(base[source], check)
    place = f'{GROUP}/{name.removesuffix("kernel")}'
    a, b = (tensors.get(place + part) for part in ADAPTER)
    if a is not None and b is not None:
      tensor = _folded(tensor, a, b, facts['factor'])
    whole[name] = tensor
  return whole


def _has_step(path: pathlib.Path, step: int) -> bool:
  return (path / 'checkpoints' / str(step)).is_dir()


def checker(
    where: pathlib.Path, path: str, source: str, sha256: str
) -> Callable[[str], None]:
  """A function that refuses other digests than that of a tensor of a base."""

  def check(actual: str) -> None:
    if actual != sha256:
      raise UserError(
          f'{where} has adapters on another base than {path}: {source} is not'
          ' what they were trained on. Give that checkpoint, unchanged.'
      )

  return check


def _folded(tensor: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:

  def load() -> np.ndarray:
    low, high = (part.read().astype(np.float64) for part in (a, b))
    return (tensor.load() + factor * (low @ high)).astype(np.float32)

  return dataclasses.replace(tensor, load=load)
