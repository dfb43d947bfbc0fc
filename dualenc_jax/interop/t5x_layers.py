"""The layouts of layers in T5X's trees, all made that of `T5Encoder`.

T5X and flaxformer can run the layers as a scan; then one tensor,
`encoder/encoder/mlp/wo/kernel`, holds all layers along axis 1 (or 0, as their
`param_scan_axis` says; ours is `encoder/layers/...`, axis 0). In T5X's scalable
T5 each layer has its relative positions, and attention kernels have three axes.
"""

from collections.abc import Mapping
import re

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.tensor_files.tensors import Tensor

_STACKED = re.compile(r'((?:passage_)?encoder)/(?:encoder|layers)/(.+)')
_NORM = 'pre_attention_layer_norm/scale'
_BIAS = 'relpos_bias/rel_embedding'
_ANY_BIAS = re.compile(rf'((?:passage_)?encoder)/(layers_\d+/)?{_BIAS}')


def one_by_one(
    tensors: Mapping[str, Tensor], widths: Mapping[str, int]
) -> dict[str, Tensor]:
  """One tensor a layer, two axes a kernel, one relative position bias a tower.

  Args:
    tensors: by name, 'encoder/...'.
    widths: E of each tower, {'encoder': E, 'passage_encoder': E}.

  Raises:
    UserError: the axis of the layers cannot be told, or layers have relative
      position biases that differ.
  """
  return _share_bias(_flat_kernels(_unstack(tensors, widths)))


def _unstack(tensors, widths) -> dict[str, Tensor]:
  axes = {
      match[1]: (_layer_axis(tensor, widths[match[1]]), tensor)
      for name, tensor in tensors.items()
      if (match := _STACKED.fullmatch(name)) and match[2] == _NORM
  }
  layers = {}
  for name, tensor in tensors.items():
    match = _STACKED.fullmatch(name)
    if not match:
      layers[name] = tensor
      continue
    tower, inner = match.groups()
    if tower not in axes:
      raise UserError(
          f'{tensor.where} holds stacked layers, but there is no {_NORM} with'
          ' them. Give the whole checkpoint.'
      )
    axis, norm = axes[tower]
    if tensor.shape[axis:axis + 1] != norm.shape[axis:axis + 1]:
      raise UserError(
          f'{tensor.where} has the shape {tensor.shape}; expected'
          f' {norm.shape[axis]} layers along axis {axis}, as {norm.where} has'
          f' {norm.shape}. Give the whole checkpoint.'
      )
    for i in range(norm.shape[axis]):
      layers[f'{tower}/layers_{i}/{inner}'] = tensor.entry(axis, i)
  return layers


def _layer_axis(norm: Tensor, width: int) -> int:
  """The axis of a stack of norms [width] that is that of the layers."""
  axes = [
      axis
      for axis in range(len(norm.shape))
      if norm.shape[:axis] + norm.shape[axis + 1:] == (width,)
  ]
  if len(axes) != 1:
    why = 'both may be' if axes else 'neither is'
    raise UserError(
        f'{norm.where} has the shape {norm.shape}: which axis is that of the'
        f' layers cannot be told, as {why} next to the width, {width}. Save the'
        ' checkpoint with unscanned layers.'
    )
  return axes[0]


def _flat_kernels(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  flat = {}
  for name, tensor in tensors.items():
    shape = tensor.shape
    if len(shape) == 3 and re.search(r'/attention/(query|key|value)/', name):
      tensor = tensor.reshaped(shape[0], shape[1] * shape[2])
    elif len(shape) == 3 and '/attention/out/' in name:
      tensor = tensor.reshaped(shape[0] * shape[1], shape[2])
    flat[name] = tensor
  return flat


def _share_bias(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  shared, biases = {}, {}
  for name, tensor in tensors.items():
    if match := _ANY_BIAS.fullmatch(name):
      biases.setdefault(match[1], []).append(tensor)
    else:
      shared[name] = tensor
  for tower, (first, *others) in biases.items():
    for other in others:
      if not np.array_equal(first.read(), other.read()):
        raise UserError(
            f'{other.where} differs from {first.where}: layers have relative'
            ' positions of their own, as in umT5, but in this model they share'
            ' them. Give a T5 or mT5.'
        )
    shared[f'{tower}/{_BIAS}'] = first
  return shared
