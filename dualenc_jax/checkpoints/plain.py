"""Tensors by name in one safetensors file, for other programs.

A folder of three files: the tensors in float32, by the names of `DualEncoder`;
`towers.json`, sizes, lengths and prefixes; and the SentencePiece vocabulary. A
query tower alone has no tensors of another, and `towers.json` says which
passage tower it belongs to.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.checkpoints import weights as weights_lib
from dualenc_jax.checkpoints.model_dirs import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import (
  ENCODERS,
  infer_encoder,
  SIZES,
  Usage,
  Weights,
)
from dualenc_jax.models import T5Encoder
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

VERSION = 1
# Of a query tower alone, which would be taken for both towers.
VERSION_ALONE = 2
HEADER, FILE = 'towers.json', 'weights.safetensors'
_AGAIN = 'Convert the model again.'
_ENCODER = {n: int for n in SIZES[:-1]} | {'activations': [str]}
_HEADER = {
    'version': int, 'step': int | None, 'encoder': _ENCODER,
    'passage_encoder': dict | None, f'{TRAINED_DIMS}?': [int],
    **weights_lib.USAGE,
}
_PASSAGE_TOWER = {'length': int, 'prefix': str, 'sha256': {str: str}}


def is_one(path: pathlib.Path) -> bool:
  """Whether this module wrote a folder, or its safetensors file."""
  return (_folder(path) / HEADER).is_file()


def read(path: pathlib.Path) -> Weights:
  """Reads what `write` wrote; UserError where it is damaged."""
  folder = _folder(path)
  where = folder / HEADER
  header = json_file.read(where, _AGAIN, version=int)
  if header['version'] not in (VERSION, VERSION_ALONE):
    raise UserError(
        f'{where} is of version {header["version"]}; this program'
        f' reads {VERSION} and {VERSION_ALONE}. Update dualenc_jax.'
    )
  json_file.check(header, _HEADER, where, _AGAIN)
  passage_tower = None
  if header['version'] == VERSION_ALONE:
    json_file.check(header, {'passage_tower': _PASSAGE_TOWER}, where, _AGAIN)
    facts = header['passage_tower']
    passage_tower = PassageTower(**{n: facts[n] for n in _PASSAGE_TOWER})
  tensors = safetensors_file.read(folder / FILE)
  encoder, passage_encoder = (
      header[tower] and _encoder(header[tower], where, tensors, tower)
      for tower in ENCODERS
  )
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


def write(weights: Weights, folder: pathlib.Path) -> None:
  """Writes the three files; one tensor is in memory at a time."""
  safetensors_file.write(folder / FILE, weights.tensors)
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
  return path.parent if path.name == FILE else path


def _encoder(
    facts: Mapping[str, Any], path: pathlib.Path,
    tensors: Mapping[str, Tensor], tower: str,
) -> T5Encoder:
  """An encoder of the header; UserError unless its tensors have its sizes."""
  json_file.check(facts, _ENCODER, path, _AGAIN)
  encoder = infer_encoder(tensors, facts['activations'], tower)
  found = {name: getattr(encoder, name) for name in SIZES}
  if facts != {**found, 'activations': list(encoder.activations)}:
    raise UserError(
        f'{path} says of {tower} {untrusted.shown(facts)}; its tensors are of'
        f' {found}. {_AGAIN}'
    )
  return encoder
