"""Opening of checkpoints of any known form, recognised by content."""

import dataclasses
import os
import pathlib
from typing import Any

from dualenc_jax.checkpoints import (
  artifact,
  hugging_face,
  hugging_face_config,
  loading,
  model_dirs,
  plain,
  sentence_transformers,
  t5x,
  transforms,
)
from dualenc_jax.checkpoints.weights import USAGE, Weights
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError

# Lengths and prefixes beside a form that has no place for them, in its folder
# or the one above.
USAGE_FILE = 'dualenc.json'
_AGAIN = 'Copy the whole folder again.'
# In this order: a sentence-transformers folder is a Hugging Face folder, too.
READERS = (
    model_dirs, sentence_transformers, hugging_face, plain, artifact, t5x,
)
FORMS = (
    'a model_dir, a T5X checkpoint (legacy or Orbax), a Hugging Face folder of'
    ' a T5 or mT5 with safetensors, a sentence-transformers folder, or what'
    ' `dualenc convert` wrote'
)


def read(
    path: str | os.PathLike[str], step: int | None = None,
    dim: int | None = None,
) -> Weights:
  """The contents of a checkpoint, whose tensors are read on demand.

  Args:
    path: a folder or a file; gs:// for T5X checkpoints.
    step: of the checkpoint in a model_dir; None for the newest.
    dim: as of `transforms.truncate`; None for all components.

  Raises:
    UserError: the path holds nothing that is known, or what
      `transforms.truncate` raises.
  """
  weights = _read(path, step)
  return weights if dim is None else transforms.truncate(weights, dim)


def _read(path: str | os.PathLike[str], step: int | None) -> Weights:
  reader = reader_of(path)
  folder = pathlib.Path(path).expanduser()
  if reader is model_dirs:
    return model_dirs.read(folder, step)
  if step is not None:
    raise UserError(
        f'{path} is not a model_dir, so it has no steps. Leave out the step.'
    )
  if '://' in str(path):
    return reader.read(path)
  untrusted.check_folder(folder, _AGAIN)
  weights = reader.read(folder)
  above = folder if (folder / USAGE_FILE).is_file() else folder.parent
  file = above / USAGE_FILE
  if not file.is_file():
    return weights
  again = (
      'Convert the model again, or remove the file and give lengths and'
      ' prefixes.'
  )
  usage = weights.usage.saved(json_file.read(file, again, **USAGE), above)
  return dataclasses.replace(weights, usage=usage)


def load(
    path: str | os.PathLike[str], dim: int | None = None, **given: Any
) -> Loaded:
  """A checkpoint as a model on the devices of this host; no config is run.

  Args:
    path: as of `read`; of a model_dir the newest checkpoint that can be read.
    dim: as of `read`.
    **given: arguments of `loading.load`, for a checkpoint without a vocabulary
      or lengths of its own.

  Raises:
    UserError: as `read` and `loading.load`; or it is a query tower alone.
  """
  if reader_of(path) is not model_dirs:
    weights = read(path, dim=dim)
    if weights.passage_tower:
      raise UserError(
          f'{path} ({weights.kind}) has only a query tower and cannot encode'
          ' passages. To search an index with it, convert it --to=jax_export;'
          ' else open the whole model.'
      )
    return loading.load(weights, **given)
  if given:
    raise UserError(
        f'{path} has its own vocabulary and lengths: leave out'
        f' {", ".join(given)}.'
    )
  return loading.load_own(pathlib.Path(path).expanduser(), dim=dim)


def reader_of(path: str | os.PathLike[str]) -> Any:
  """The module that reads a checkpoint; raises as `read` does."""
  if '://' in str(path):
    return t5x
  folder = pathlib.Path(path).expanduser()
  if not folder.exists():
    raise UserError(
        f'{path} does not exist. Expected {FORMS}. hf://org/name is downloaded'
        ' from the Hugging Face hub.'
    )
  # Else a special file would pass for one that is absent.
  untrusted.check_folder(folder, _AGAIN, deep=False)
  for reader in READERS:
    if reader.is_one(folder):
      return reader
  raise UserError(f'{path} has no known form.{_hint(folder)}')


def _hint(folder: pathlib.Path) -> str:
  """What it may be, and what was expected."""
  if (folder / 'config.gin').is_file():
    return ' Its run has no checkpoint yet. Train first.'
  above = folder.absolute().parent
  name = folder.name
  if untrusted.is_digits(name) and (above.parent / 'config.gin').is_file():
    return f' Give {above.parent}, with --step={name}.'
  if (above / 'config.gin').is_file() or t5x.is_one(above):
    return f' Give {above}.'
  if (folder / 'config.json').is_file():
    found = hugging_face_config.read(folder).get('model_type')
    return f' Its config.json has model_type {found!r}; expected t5 or mt5.'
  for inner in sorted(folder.glob('checkpoint*')):
    untrusted.check_folder(inner, _AGAIN, deep=False)
  inside = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
  holds = f' It holds {", ".join(inside[:8])}.' if inside else ''
  return f'{holds} Expected {FORMS}.'
