"""Forms for other programs, read as checkpoints: plain tensors, jax.export.

Plain tensors are a folder of three files: the tensors in float32, by the names
of `DualEncoder`, in one safetensors file; `towers.json`, sizes, lengths and
prefixes; and the SentencePiece vocabulary. A query tower alone has no tensors
of another, and `towers.json` names the passage tower that it belongs to.
"""

import dataclasses
import pathlib
from typing import Any

from dualenc_jax.checkpoints import weights as weights_lib
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import (
  ENCODERS,
  infer_encoders,
  SIZES,
  Usage,
  Weights,
)
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import expect
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import unstack

VERSION = 1
_HEADER, _TENSORS = 'towers.json', 'weights.safetensors'
_ENCODER = {'activations': [str]}
_PASSAGE_TOWER = {'length': int, 'prefix': str, 'sha256': {str: str}}
_TYPES: dict[str, Any] = {
    'version': int, 'step': int | None, 'encoder': _ENCODER,
    'passage_encoder': dict | None, f'{TRAINED_DIMS}?': [int],
    'passage_tower?': _PASSAGE_TOWER,
    **weights_lib.USAGE,
}
_AGAIN = 'Convert the model again.'


def is_plain(path: pathlib.Path) -> bool:
  """Whether `write_plain` wrote a folder, or its safetensors file."""
  return (_folder(path) / _HEADER).is_file()


def _folder(path: pathlib.Path) -> pathlib.Path:
  return path.parent if path.name == _TENSORS else path


def write_plain(weights: Weights, folder: pathlib.Path) -> None:
  """Writes the three files; one tensor is in memory at a time."""
  safetensors_file.write(folder / _TENSORS, weights.tensors)
  header: dict[str, Any] = {'version': VERSION, 'step': weights.step}
  for tower in ENCODERS:
    encoder = getattr(weights, tower)
    header[tower] = encoder and {n: getattr(encoder, n) for n in SIZES}
  if weights.passage_tower:
    header['passage_tower'] = dataclasses.asdict(weights.passage_tower)
  if weights.trained_dims:
    header[TRAINED_DIMS] = list(weights.trained_dims)
  files.write_json(folder / _HEADER, header | weights.usage.facts())
  weights.usage.save_vocabulary(folder)


def read_plain(path: pathlib.Path) -> Weights:
  """Reads what `write_plain` wrote; UserError where it is damaged."""
  folder = _folder(path)
  where = folder / _HEADER
  header = json_file.read(where, _AGAIN, **_TYPES)
  expect(
      header['version'] == VERSION, f'{where}: version', header['version'],
      f'{VERSION}: update dualenc_jax',
  )
  passage = header['passage_encoder'] or header['encoder']
  json_file.check(passage, _ENCODER, where, _AGAIN)
  tensors = safetensors_file.read(folder / _TENSORS)
  activations = header['encoder']['activations'], passage['activations']
  tower = header.get('passage_tower')
  return Weights(
      'plain tensors',
      str(folder),
      tensors,
      *infer_encoders(tensors, *activations),
      Usage().updated(header, folder),
      step=header['step'],
      passage_tower=tower
      and PassageTower(**{n: tower[n] for n in _PASSAGE_TOWER}),
      trained_dims=tuple(header.get(TRAINED_DIMS, ())),
  ).check()


def is_artifact(path: pathlib.Path) -> bool:
  """Whether `Retriever.save` or `--to=jax_export` wrote this folder."""
  return (path / artifact.FILE).is_file()


def read_artifact(path: pathlib.Path) -> Weights:
  """Reads a jax.export artifact; UserError where a file has changed."""
  manifest = artifact.Manifest.read(path)
  artifact.check_files(path, manifest.model_files)
  types = {'checkpoint_step?': int | None, f'{TRAINED_DIMS}?': [int]}
  where = f'{path / artifact.FILE}: provenance'
  json_file.check(manifest.provenance, types, where, 'Copy it again.')
  tensors = unstack(safetensors_file.read(path / artifact.WEIGHTS))
  query, passage = manifest.towers['query'], manifest.passages
  return Weights(
      'jax.export artifact',
      str(path),
      tensors,
      *infer_encoders(
          tensors, query.activations, getattr(passage, 'activations', None)
      ),
      Usage(
          path / artifact.VOCABULARY, None, query.length, passage.length,
          query.prefix, passage.prefix, manifest.prompts,
          manifest.default_prompt,
      ),
      step=manifest.provenance.get('checkpoint_step'),
      passage_tower=manifest.passage_tower,
      trained_dims=tuple(manifest.provenance.get(TRAINED_DIMS, ())),
  ).check()
