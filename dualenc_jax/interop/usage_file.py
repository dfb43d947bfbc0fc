"""Lengths, prefixes and vocabulary beside a form that has no place for them."""

import dataclasses
import pathlib
import shutil

from dualenc_jax.interop.weights import Weights
from dualenc_jax.io import files, json_file

FILE = 'dualenc.json'
VOCABULARY = 'vocabulary.model'
TYPES = {
    'query_length': int | None,
    'passage_length': int | None,
    'query_prefix': str,
    'passage_prefix': str,
}
NAMES = tuple(TYPES)


def write(weights: Weights, folder: pathlib.Path) -> None:
  """Writes what `apply` reads; other programs pass it over."""
  values = {name: getattr(weights.usage, name) for name in NAMES}
  files.write_json(folder / FILE, values)
  if weights.usage.vocabulary is not None:
    shutil.copyfile(weights.usage.vocabulary, folder / VOCABULARY)


def apply(weights: Weights, path: pathlib.Path) -> Weights:
  """Takes what lies beside a checkpoint, in its folder or the one above.

  Raises:
    UserError: the file is damaged.
  """
  folder = path if (path / FILE).is_file() else path.parent
  file = folder / FILE
  if not file.is_file():
    return weights
  values = json_file.read(
      file,
      'Convert the model again, or remove the file and give lengths and'
      ' prefixes.',
      **TYPES,
  )
  values = {name: values[name] for name in NAMES}
  vocabulary = folder / VOCABULARY
  if vocabulary.is_file():
    values['vocabulary'] = vocabulary
  usage = dataclasses.replace(weights.usage, **values)
  return dataclasses.replace(weights, usage=usage)
