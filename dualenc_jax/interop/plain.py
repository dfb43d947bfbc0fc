"""Tensors by name in one file, .npz or .safetensors, for other programs.

A folder of three files: the tensors in float32, by the names of `DualEncoder`;
`towers.json`, sizes, lengths and prefixes; and the SentencePiece vocabulary.
"""

from collections.abc import Mapping
import functools
import json
import pathlib
import shutil
from typing import Any
import zipfile

from flax import linen as nn
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.interop import usage_file
from dualenc_jax.interop.weights import Usage, Weights
from dualenc_jax.io import files
from dualenc_jax.models import T5Encoder
from dualenc_jax.tensor_files import safetensors_file
from dualenc_jax.tensor_files.tensors import Tensor

VERSION = 1
HEADER = 'towers.json'
NPZ = 'weights.npz'
SAFETENSORS = 'weights.safetensors'
_ENCODERS = ('encoder', 'passage_encoder')
_SIZES = ('num_layers', 'num_heads', 'head_dim', 'mlp_dim', 'activations')


def is_one(path: pathlib.Path) -> bool:
  """Whether this module wrote a folder, or its .npz or .safetensors file."""
  return (_folder(path) / HEADER).is_file()


def read(path: pathlib.Path) -> Weights:
  """Reads what `write_npz` or `write_safetensors` wrote.

  Raises:
    UserError: a file is missing, damaged or of a later version.
  """
  folder = _folder(path)
  try:
    header = dict(json.loads((folder / HEADER).read_text()))
    version, step = header['version'], header['step']
    encoder, passage_encoder = (header[tower] for tower in _ENCODERS)
    encoder = _encoder(encoder)
    passage_encoder = passage_encoder and _encoder(passage_encoder)
    usage = _usage(header)
    if not isinstance(step, int | None):
      raise ValueError(f'step is {step!r}')
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(
        f'{folder / HEADER} cannot be read ({type(e).__name__}: {e}). Convert'
        ' the model again.'
    ) from e
  if version != VERSION:
    raise UserError(
        f'{folder / HEADER} is of version {version}; this program reads'
        f' {VERSION}. Update dualenc_jax.'
    )
  if (folder / NPZ).is_file():
    tensors = _read_npz(folder / NPZ)
  elif (folder / SAFETENSORS).is_file():
    tensors = safetensors_file.read(folder / SAFETENSORS)
  else:
    raise UserError(f'{folder} has neither {NPZ} nor {SAFETENSORS}.')
  vocabulary = folder / usage_file.VOCABULARY
  return Weights(
      'plain tensors',
      str(folder),
      tensors,
      encoder,
      passage_encoder,
      Usage(vocabulary if vocabulary.is_file() else None, None, **usage),
      step=step,
  ).check()


def write_npz(weights: Weights, folder: pathlib.Path) -> None:
  """Writes `weights.npz`, for NumPy; one tensor in memory at a time."""
  with zipfile.ZipFile(folder / NPZ, 'w', zipfile.ZIP_STORED) as archive:
    for name, tensor in weights.tensors.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as file:
        array = np.ascontiguousarray(tensor.read())
        np.lib.format.write_array(file, array, allow_pickle=False)
  _write_rest(weights, folder)


def write_safetensors(weights: Weights, folder: pathlib.Path) -> None:
  """Writes `weights.safetensors`; one tensor in memory at a time."""
  safetensors_file.write(folder / SAFETENSORS, weights.tensors)
  _write_rest(weights, folder)


def _write_rest(weights: Weights, folder: pathlib.Path) -> None:
  header: dict[str, Any] = {'version': VERSION, 'step': weights.step}
  for tower in _ENCODERS:
    encoder = getattr(weights, tower)
    header[tower] = encoder and {n: getattr(encoder, n) for n in _SIZES}
  header |= {name: getattr(weights.usage, name) for name in usage_file.NAMES}
  files.write_json(folder / HEADER, header)
  if weights.usage.vocabulary is not None:
    shutil.copyfile(weights.usage.vocabulary, folder / usage_file.VOCABULARY)


def _folder(path: pathlib.Path) -> pathlib.Path:
  return path.parent if path.name in (NPZ, SAFETENSORS) else path


def _encoder(facts: Mapping[str, Any]) -> T5Encoder:
  """An encoder of the header; raises if its sizes can be none."""
  for name, value in facts.items():
    if name != 'activations' and (type(value) is not int or value < 1):
      raise ValueError(f'{name} is {value!r}')
  activations = tuple(facts['activations'])
  unknown = [a for a in activations if a != 'linear' and not hasattr(nn, a)]
  if unknown or not activations:
    raise ValueError(f'activations are {activations!r}')
  return T5Encoder(**{**facts, 'activations': activations})


def _usage(header: Mapping[str, Any]) -> dict[str, Any]:
  """Lengths and prefixes of the header; raises if they can be none."""
  usage = {name: header[name] for name in usage_file.NAMES}
  for name, value in usage.items():
    expected = str if name.endswith('prefix') else int | None
    if not isinstance(value, expected):
      raise ValueError(f'{name} is {value!r}')
  return usage


def _read_npz(path: pathlib.Path) -> Mapping[str, Tensor]:
  tensors = {}
  try:
    with zipfile.ZipFile(path) as archive:
      for member in archive.namelist():
        with archive.open(member) as file:
          version = np.lib.format.read_magic(file)
          read = getattr(np.lib.format, f'read_array_header_{version[0]}_0')
          shape, _, _ = read(file)
        name = member.removesuffix('.npy')
        tensors[name] = Tensor(
            f'{path}: {name}', shape, functools.partial(_load, path, member)
        )
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise UserError(
        f'{path} is no whole .npz file: {e}. It is damaged or was cut off; copy'
        ' it again.'
    ) from e
  return tensors


def _load(path: pathlib.Path, member: str) -> np.ndarray:
  """One array of an .npz file; raises ValueError if it is damaged."""
  try:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
      array = np.lib.format.read_array(file, allow_pickle=False)
      # The checksum is compared at the end of the member, no sooner.
      if file.read(1):
        raise ValueError('there is more of it than its header says')
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise ValueError(str(e) or type(e).__name__) from e
  return array
