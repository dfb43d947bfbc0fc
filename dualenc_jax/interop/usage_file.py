"""Lengths, prefixes and vocabulary beside a form that has no place for them."""

import dataclasses
import json
import pathlib
import shutil

from dualenc_jax.errors import UserError
from dualenc_jax.interop.weights import Weights
from dualenc_jax.io import files

FILE = 'dualenc.json'
VOCABULARY = 'vocabulary.model'
NAMES = ('query_length', 'passage_length', 'query_prefix', 'passage_prefix')


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
  try:
    values = json.loads(file.read_text(encoding='utf-8'))
    values = {name: values[name] for name in NAMES}
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise UserError(
        f'{file} cannot be read ({type(e).__name__}: {e}). Convert the model'
        ' again, or remove the file and give lengths and prefixes.'
    ) from e
  vocabulary = folder / VOCABULARY
  if vocabulary.is_file():
    values['vocabulary'] = vocabulary
  usage = dataclasses.replace(weights.usage, **values)
  return dataclasses.replace(weights, usage=usage)
