"""Tensors by name in one file, .npz or .safetensors, for other programs.

A folder of three files: the tensors in float32, by the names of `DualEncoder`;
`towers.json`, sizes, lengths and prefixes; and the SentencePiece vocabulary.
"""

from collections.abc import Mapping
import json
import pathlib
import shutil
from typing import Any
import zipfile

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.interop import safetensors_file
from dualenc_jax.interop.tensors import Tensor
from dualenc_jax.interop.weights import Usage
from dualenc_jax.interop.weights import Weights
from dualenc_jax.models import T5Encoder

VERSION = 1
HEADER = 'towers.json'
VOCABULARY = 'vocabulary.model'
NPZ = 'weights.npz'
SAFETENSORS = 'weights.safetensors'
_ENCODERS = ('encoder', 'passage_encoder')
_SIZES = ('num_layers', 'num_heads', 'head_dim', 'mlp_dim', 'activations')
_USAGE = ('query_length', 'passage_length', 'query_prefix', 'passage_prefix')


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
    header = json.loads((folder / HEADER).read_text())
    encoders = {
        tower: T5Encoder(**{
            **header[tower], 'activations': tuple(header[tower]['activations'])
        })
        for tower in _ENCODERS
        if header.get(tower)
    }
    usage = {name: header[name] for name in _USAGE}
    version = header['version']
  except (ValueError, KeyError, TypeError) as e:
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
  vocabulary = folder / VOCABULARY
  return Weights(
      'plain tensors',
      str(folder),
      tensors,
      encoders['encoder'],
      encoders.get('passage_encoder'),
      Usage(vocabulary if vocabulary.is_file() else None, None, **usage),
      step=header.get('step'),
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
  header |= {name: getattr(weights.usage, name) for name in _USAGE}
  (folder / HEADER).write_text(json.dumps(header, indent=1) + '\n')
  if weights.usage.vocabulary is not None:
    shutil.copyfile(weights.usage.vocabulary, folder / VOCABULARY)


def _folder(path: pathlib.Path) -> pathlib.Path:
  return path.parent if path.name in (NPZ, SAFETENSORS) else path


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
            f'{path}: {name}', shape, lambda name=name: np.load(path)[name]
        )
  except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as e:
    raise UserError(
        f'{path} is no whole .npz file: {e}. It is damaged or was cut off; copy'
        ' it again.'
    ) from e
  return tensors
