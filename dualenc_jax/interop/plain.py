"""Tensors by name in one file, .npz or .safetensors, for other programs.

A folder of three files: the tensors in float32, by the names of `DualEncoder`;
`towers.json`, sizes, lengths and prefixes; and the SentencePiece vocabulary. A
query tower alone has no other's tensors, and `towers.json` says which passage
tower it belongs to.
"""

from collections.abc import Mapping
import dataclasses
import functools
import io
import pathlib
from typing import Any
import zipfile

from flax import linen as nn
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import PassageTower
from dualenc_jax.interop.own import TRAINED_DIMS
from dualenc_jax.interop.weights import ENCODERS, SIZES, USAGE, Usage, Weights
from dualenc_jax.io import files, json_file
from dualenc_jax.models import T5Encoder
from dualenc_jax.tensor_files import safetensors_file
from dualenc_jax.tensor_files.tensors import Tensor

VERSION = 1
# Of a query tower alone, which would be taken for both towers.
VERSION_ALONE = 2
HEADER = 'towers.json'
NPZ = 'weights.npz'
SAFETENSORS = 'weights.safetensors'
_AGAIN = 'Convert the model again.'


def is_one(path: pathlib.Path) -> bool:
  """Whether this module wrote a folder, or its .npz or .safetensors file."""
  return (_folder(path) / HEADER).is_file()


def read(path: pathlib.Path) -> Weights:
  """Reads what `write_npz` or `write_safetensors` wrote.

  Raises:
    UserError: a file is missing, damaged or of a later version.
  """
  folder = _folder(path)
  header = json_file.read(
      folder / HEADER,
      _AGAIN,
      version=int,
      step=int | None,
      encoder=dict,
      passage_encoder=dict | None,
      **USAGE,
  )
  dims = {f'{TRAINED_DIMS}?': [int]}
  json_file.check(header, dims, folder / HEADER, _AGAIN)
  if header['version'] not in (VERSION, VERSION_ALONE):
    raise UserError(
        f'{folder / HEADER} is of version {header["version"]}; this program'
        f' reads {VERSION} and {VERSION_ALONE}. Update dualenc_jax.'
    )
  passage_tower = None
  if header['version'] == VERSION_ALONE:
    passage_tower = _passage_tower(header, folder / HEADER)
  encoder, passage_encoder = (
      facts and _encoder(facts, folder / HEADER)
      for facts in map(header.get, ENCODERS)
  )
  if (folder / NPZ).is_file():
    tensors = _read_npz(folder / NPZ)
  elif (folder / SAFETENSORS).is_file():
    tensors = safetensors_file.read(folder / SAFETENSORS)
  else:
    raise UserError(f'{folder} has neither {NPZ} nor {SAFETENSORS}.')
  return Weights(
      'plain tensors',
      str(folder),
      tensors,
      encoder,
      passage_encoder,
      Usage().saved(header, folder),
      step=header['step'],
      passage_tower=passage_tower,
      trained_dims=tuple(header.get(TRAINED_DIMS, ())),
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
  for tower in ENCODERS:
    encoder = getattr(weights, tower)
    header[tower] = encoder and {n: getattr(encoder, n) for n in SIZES}
  if weights.passage_tower:
    header['version'] = VERSION_ALONE
    header['passage_tower'] = dataclasses.asdict(weights.passage_tower)
  if weights.trained_dims:
    header[TRAINED_DIMS] = list(weights.trained_dims)
  files.write_json(folder / HEADER, header | weights.usage.facts())
  weights.usage.save_vocabulary(folder)


def _folder(path: pathlib.Path) -> pathlib.Path:
  return path.parent if path.name in (NPZ, SAFETENSORS) else path


def _passage_tower(
    header: Mapping[str, Any], path: pathlib.Path
) -> PassageTower:
  types = {'length': int, 'prefix': str, 'sha256': {str: str}}
  json_file.check(header, {'passage_tower': types}, path, _AGAIN)
  return PassageTower(**{n: header['passage_tower'][n] for n in types})


def _encoder(facts: Mapping[str, Any], path: pathlib.Path) -> T5Encoder:
  """An encoder of the header; raises UserError if its sizes can be none."""
  sizes = {name: int for name in SIZES if name != 'activations'}
  json_file.check(facts, {'activations': list, **sizes}, path, _AGAIN)
  activations = facts['activations']
  unknown = [
      a for a in activations
      if a != 'linear' and not (isinstance(a, str) and hasattr(nn, a))
  ]
  small = [name for name in sizes if facts[name] < 1]
  if unknown or small or not activations or facts.keys() != set(SIZES):
    raise UserError(
        f'{path} has an encoder that can be none: {dict(facts)}. {_AGAIN}'
    )
  sizes = {name: facts[name] for name in sizes}
  return T5Encoder(**sizes, activations=tuple(activations))


def _read_npz(path: pathlib.Path) -> Mapping[str, Tensor]:
  tensors = {}
  try:
    with zipfile.ZipFile(path) as archive:
      for member in archive.namelist():
        with archive.open(member) as file:
          # Version 1.0 of the format has room for any shape.
          np.lib.format.read_magic(file)
          shape, _, _ = np.lib.format.read_array_header_1_0(file)
        name = member.removesuffix('.npy')
        load = functools.partial(_load, path, member)
        tensors[name] = Tensor(f'{path}: {name}', shape, load)
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise UserError(
        f'{path} is no whole .npz file: {e}. It is damaged or was cut off; copy'
        ' it again.'
    ) from e
  return tensors


def _load(path: pathlib.Path, member: str) -> np.ndarray:
  """One array of an .npz file; raises ValueError if it is damaged."""
  try:
    with zipfile.ZipFile(path) as archive:
      # Read at once, the member is compared with its checksum.
      return np.load(io.BytesIO(archive.read(member)))
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise ValueError(str(e) or type(e).__name__) from e
