"""Reads checkpoints of T5X: a T5, or a dual encoder of t5x_retrieval.

Either form, legacy or Orbax, holds the parameters under `target` and the state
of the optimizer under `state`. A GTR or a Sentence-T5 is an encoder-decoder's
tree without a decoder and with `projection_layer/kernel`.

T5X and flaxformer can run the layers as a scan; then one tensor,
`encoder/encoder/mlp/wo/kernel`, holds all layers along axis 1 (or 0, by their
`param_scan_axis`; ours is `encoder/layers/...`, axis 0). In T5X's scalable T5
each layer has its relative positions, and attention kernels have three axes.
All of these are read in the layout of `T5Encoder`.
"""

from collections.abc import Collection, Mapping
import math
import os
import re
from typing import Any

from etils import epath
import numpy as np

from dualenc_jax.checkpoints import t5x_legacy
from dualenc_jax.checkpoints.weights import (
  EMBEDDING,
  ENCODERS,
  infer_encoders,
  PROJECTION,
  Weights,
)
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import tensors as tensors_lib, zarr_files
from dualenc_jax.utils.tensor_files.tensors import Tensor

KIND = 'T5X checkpoint'
# Our names by others; flaxformer may have a token embedder within the encoder.
_OURS = {t5x_legacy.PROJECTION: PROJECTION, f'encoder/{EMBEDDING}': EMBEDDING}
_FOLDER = re.compile('checkpoint_(0|[1-9][0-9]*)')
_STATISTIC = re.compile(r'state/param_states/(.+)/\w+')
_TOWER = '((?:passage_)?encoder|decoder)'
_STACKED = re.compile(rf'{_TOWER}/(?:encoder|decoder|layers)/(.+)')
_NORM = re.compile(r'pre_(self_)?attention_layer_norm/scale')
_BIAS = 'relpos_bias/rel_embedding'
_ANY_BIAS = re.compile(rf'{_TOWER}/(layers_\d+/)?{_BIAS}')


def matches(path: str | os.PathLike[str]) -> bool:
  """Whether it is a checkpoint of T5X, its `state`, or a folder of such."""
  root = epath.Path(path)
  return _find_tree(root) is not None or any(
      _find_tree(folder) for folder in _numbered_folders(root).values()
  )


def read(path: str | os.PathLike[str]) -> Weights:
  """Reads the parameters of an encoder on demand, without those of a decoder.

  Its activations are those of T5 1.0 or 1.1, by the number of its matrices.

  Args:
    path: `checkpoint_1000`, its item `state`, or a folder that holds such
      checkpoints, of which the newest is read; local or gs://.

  Raises:
    UserError: it is no such checkpoint, is damaged, or holds another model.
  """
  path, form, tree = _read_tree(path)
  targets: dict[str, Any] = {
      name.removeprefix('target/'): tensor
      for name, tensor in tree.items()
      if name.startswith('target/')
  }
  names = {
      name: _OURS.get(name, name)
      for name in targets
      if not name.startswith('decoder/')
  }
  given = {ours: targets[name] for name, ours in names.items()}
  _check_family(given, names, f'{path} ({KIND})')
  loss = {n: t for n, t in given.items() if n.startswith('loss/')}
  table = given[EMBEDDING]
  own_table = given.get(f'passage_{EMBEDDING}', table)
  widths = dict(zip(ENCODERS, (table.shape[-1], own_table.shape[-1])))
  tensors = _unscan(
      {n: t for n, t in given.items() if n not in loss}, widths
  )
  others = _list_left_out(tree, targets.keys(), str(path))
  decoder = {
      f'target/{name}': 'head' if '/logits_dense/' in name else 'decoder'
      for name in targets.keys() - names.keys()
  }
  return Weights(
      f'{KIND} ({form})',
      str(path),
      tensors,
      *infer_encoders(tensors),
      read_decoder=lambda: _read_decoder(targets),
      left_out=decoder | others,
      loss=loss,
      step=_read_step(tree.get('state/step')),
      names_activations=False,
  ).check()


def _read_decoder(targets: Mapping[str, Any]) -> dict[str, Tensor]:
  decoder = {
      name: tensor
      for name, tensor in targets.items()
      if name.startswith('decoder/') and tensor is not None
  }
  norm = decoder.get('decoder/decoder_norm/scale')
  return _unscan(decoder, {'decoder': norm.shape[0]}) if norm else {}


def _read_step(tensor: Tensor | None) -> int | None:
  if tensor is None:
    return None
  if math.prod(tensor.shape) == 1 and (step := tensor.read().item()) >= 0:
    return int(step)
  raise UserError(
      f'{tensor.where} is not a step; expected one number, 0 or more.'
  )


def _read_tree(
    path: str | os.PathLike[str],
) -> tuple[epath.Path, str, Mapping[str, Any]]:
  """A checkpoint, or the newest of those in a folder; its form, its tree."""
  root = epath.Path(path)
  try:
    folder = _find_tree(root)
    if folder is None:
      root = max(_numbered_folders(root).items(), default=(0, root))[1]
      folder = _find_tree(root)
  except Exception as e:  # Libraries that read gs:// have their own errors.
    raise UserError(
        f'{root} cannot be reached: {zarr_files.first_line(e)}. gs:// needs'
        ' your credentials, and tensorflow or gcsfs.'
    ) from e
  if folder is None:
    raise UserError(
        f'{root} is not a {KIND}; expected the folder checkpoint_<step> with a'
        f' msgpack file "{t5x_legacy.FILE}", or the Orbax item "state".'
    )
  if zarr_files.is_tree(folder):
    return root, 'Orbax', zarr_files.read_tree(folder)
  return root, 'legacy', t5x_legacy.read_tree(folder)


def _numbered_folders(path: epath.Path) -> dict[int, epath.Path]:
  return {
      int(match[1]): folder
      for folder in (path.iterdir() if path.is_dir() else ())
      if (match := _FOLDER.fullmatch(folder.name))
  }


def _find_tree(path: epath.Path) -> epath.Path | None:
  """The folder with the tree of a checkpoint; None if it is not T5X's."""
  for folder in (path, path / 'state'):
    if zarr_files.is_tree(folder):
      return folder if zarr_files.has_key(folder, 'target') else None
    if t5x_legacy.is_tree(folder):
      return folder
  return None


def _check_family(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], what: str
) -> None:
  """Raises UserError unless the names are those of a T5, each once."""
  if EMBEDDING not in tensors:
    parts = sorted({name.split('/')[0] for name in tensors})
    raise UserError(
        f'{what} has no token embeddings (target/{EMBEDDING}); it holds'
        f' {", ".join(parts) or "a decoder at most"}. Give a whole T5.'
    )
  twice = [n for n, ours in names.items() if n != ours and ours in names]
  if twice:
    raise UserError(
        f'{what} has both {twice[0]} and {names[twice[0]]}; expected one.'
    )


def _list_left_out(
    tree: Collection[str], parameters: Collection[str], where: str
) -> dict[str, str]:
  """Names of all except parameters, with a reason such as 'optimizer'."""
  left_out = {}
  for path in tree:
    match = _STATISTIC.fullmatch(path)
    if match and match[1] not in parameters:
      raise UserError(
          f'{where}: {path} belongs to the missing parameter target/{match[1]}.'
          ' Give the whole checkpoint.'
      )
    if not path.startswith('target/') and path != 'state/step':
      part = path.split('/')[0]
      left_out[path] = 'optimizer' if part == 'state' else part
  return left_out


def _unscan(
    tensors: Mapping[str, Tensor], widths: Mapping[str, int]
) -> dict[str, Tensor]:
  """Makes one tensor a layer, kernels of two axes, one bias if all are equal.

  `widths` are E of each tower. UserError if the axis of the layers is
  ambiguous, or layers of a decoder have relative position biases that differ.
  """
  unscanned: dict[str, Tensor] = {}
  biases: dict[str, dict[str, Tensor]] = {}
  for name, tensor in _unstack(tensors, widths).items():
    shape = tensor.shape
    if len(shape) == 3 and re.search(r'attention/(query|key|value)/', name):
      tensor = tensor.reshaped(shape[0], shape[1] * shape[2])
    elif len(shape) == 3 and 'attention/out/' in name:
      tensor = tensor.reshaped(shape[0] * shape[1], shape[2])
    if match := _ANY_BIAS.fullmatch(name):
      biases.setdefault(match[1], {})[name] = tensor
    else:
      unscanned[name] = tensor
  for tower, by_name in biases.items():
    first, *others = by_name.values()
    differing = [
        other for other in others
        if not np.array_equal(first.read(), other.read())
    ]
    if differing and tower == 'decoder':
      raise UserError(
          f'{differing[0].where} differs from {first.where}: layers have'
          ' relative positions of their own, as in umT5, and no decoder here'
          ' has. Give a T5 or mT5.'
      )
    unscanned |= by_name if differing else {f'{tower}/{_BIAS}': first}
  return unscanned


def _unstack(
    tensors: Mapping[str, Tensor], widths: Mapping[str, int]
) -> dict[str, Tensor]:
  axes = {
      match[1]: (_find_layer_axis(tensor, widths[match[1]]), tensor)
      for name, tensor in tensors.items()
      if (match := _STACKED.fullmatch(name)) and _NORM.fullmatch(match[2])
  }
  layers: dict[str, Tensor] = {}
  for name, tensor in tensors.items():
    match = _STACKED.fullmatch(name)
    if not match:
      layers[name] = tensor
      continue
    tower, inner = match.groups()
    if tower not in axes:
      raise UserError(
          f'{tensor.where} holds stacked layers, but the norm before attention'
          ' is missing. Give the whole checkpoint.'
      )
    axis, norm = axes[tower]
    count = norm.shape[axis]
    tensors_lib.check_layers(norm.where, count)
    if tensor.shape[axis : axis + 1] != (count,):
      raise UserError(
          f'{tensor.where} has the shape {tensor.shape}; expected {count}'
          f' layers along axis {axis}, as in {norm.where}.'
      )
    for i in range(count):
      layers[f'{tower}/layers_{i}/{inner}'] = tensor.entry(axis, i)
  return layers


def _find_layer_axis(norm: Tensor, width: int) -> int:
  """The axis of the layers in a stack of norms [width]."""
  shape = norm.shape
  axes = [
      axis
      for axis in range(len(shape))
      if shape[:axis] + shape[axis + 1 :] == (width,)
  ]
  if len(axes) != 1:
    raise UserError(
        f'{norm.where} has the shape {shape}: the axis of layers is ambiguous'
        f' beside the width, {width}. Save unscanned layers.'
    )
  return axes[0]
