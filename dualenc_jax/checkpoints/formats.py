"""Forms of checkpoints, recognised by content: read, or loaded as a model."""

from collections.abc import Callable
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.checkpoints import (
  checkpoint_reader,
  hugging_face,
  hugging_face_config,
  loading,
  sentence_transformers,
  t5x,
  transforms,
)
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import (
  infer_encoders,
  rebuild_gemma,
  USAGE,
  Usage,
  Weights,
)
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import unstack

# Lengths and prefixes beside a form that has no place for them, in its folder
# or the one above.
USAGE_FILE = 'dualenc.json'
_AGAIN = 'Copy the whole folder again.'


class _Format(NamedTuple):
  """A form of checkpoints.

  Attributes:
    matches: whether a path is of this form.
    read: its `Weights`.
  """

  matches: Callable[[Any], bool]
  read: Callable[[Any], Weights]


def _read_artifact(path: pathlib.Path) -> Weights:
  manifest = artifact.Manifest.read(path)
  artifact.check_files(path, manifest.model_files)
  types = {'checkpoint_step?': int | None, f'{TRAINED_DIMS}?': [int]}
  where = f'{path / artifact.FILE}: provenance'
  json_file.check(manifest.provenance, types, where, 'Copy it again.')
  tensors = unstack(safetensors_file.read(path / artifact.WEIGHTS))
  query, passage = manifest.towers['query'], manifest.passages
  # A passage tower in another folder has programs there.
  here = manifest.towers.get('passage')
  if query.encoder:
    encoders: tuple[Any, Any] = rebuild_gemma(query.encoder, where), None
    if here and any(n.startswith('passage_encoder/') for n in tensors):
      encoders = encoders[0], rebuild_gemma(here.encoder or {}, where)
  else:
    encoders = infer_encoders(
        tensors, query.activations, getattr(here, 'activations', None)
    )
  return Weights(
      'jax.export artifact',
      str(path),
      tensors,
      *encoders,
      Usage(
          path / artifact.VOCABULARY, None, query.length, passage.length,
          query.prefix, passage.prefix, manifest.prompts,
          manifest.default_prompt, manifest.add_bos, manifest.add_eos,
      ),
      step=manifest.provenance.get('checkpoint_step'),
      passage_tower=manifest.passage_tower,
      trained_dims=tuple(manifest.provenance.get(TRAINED_DIMS, ())),
  ).check()


MODEL_DIR, SENTENCE_TRANSFORMERS = 'model_dir', 'sentence_transformers'
HUGGING_FACE, T5X = 'hugging_face', 't5x'
# In this order: a sentence-transformers folder is a Hugging Face folder, too.
_FORMATS = {
    MODEL_DIR: _Format(checkpoint_reader.is_model_dir, checkpoint_reader.read),
    SENTENCE_TRANSFORMERS: _Format(
        sentence_transformers.matches, sentence_transformers.read
    ),
    HUGGING_FACE: _Format(hugging_face.matches, hugging_face.read),
    'artifact': _Format(
        lambda path: (path / artifact.FILE).is_file(), _read_artifact
    ),
    T5X: _Format(t5x.matches, t5x.read),
}
_EXPECTED = (
    'a model_dir, a T5X checkpoint (legacy or Orbax), a Hugging Face folder of'
    ' a T5 or Gemma with safetensors, a sentence-transformers folder, or what'
    ' `dualenc convert` wrote'
)


def detect(path: str | os.PathLike[str]) -> str:
  """The form of a checkpoint; UserError if it has none that is known."""
  if '://' in str(path):
    return T5X
  folder = _expand(path)
  if str(path).startswith('st:'):
    raise UserError(
        f'{path}: a model by sentence-transformers is for the flags --model_dir'
        f' and --teacher of commands. Expected here: {_EXPECTED}.'
    )
  if not folder.exists():
    raise UserError(
        f'{path} does not exist. Expected {_EXPECTED}. hf://org/name is'
        ' downloaded from the Hugging Face hub.'
    )
  # A special file would otherwise pass for one that is absent.
  untrusted.check_folder(folder, _AGAIN, deep=False)
  for name, form in _FORMATS.items():
    if form.matches(folder):
      return name
  raise UserError(f'{path} has no known form.{_guess_form(folder)}')


def _expand(path: str | os.PathLike[str]) -> Any:
  """A path of this machine with its home; one of a bucket as it is."""
  return path if '://' in str(path) else pathlib.Path(path).expanduser()


def _guess_form(folder: pathlib.Path) -> str:
  if (folder / 'config.gin').is_file():
    return ' Its run has no checkpoint yet. Train first.'
  above = folder.absolute().parent
  name = folder.name
  if untrusted.is_digits(name) and (above.parent / 'config.gin').is_file():
    return f' Give {above.parent}, with --step={name}.'
  if kind := hugging_face_config.model_type(folder):
    expected = ', '.join(hugging_face.KNOWN)
    return f' Its config.json has model_type {kind!r}; expected {expected}.'
  inside = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
  holds = f' It holds {", ".join(inside[:8])}.' if inside else ''
  return f'{holds} Expected {_EXPECTED}.'


def read(
    path: str | os.PathLike[str], step: int | None = None,
    dim: int | None = None,
) -> Weights:
  """Reads a checkpoint, whose tensors are read on demand.

  Args:
    path: a folder or a file; gs:// for T5X checkpoints.
    step: of the checkpoint in a model_dir; None for the best or newest.
    dim: as of `transforms.truncate`; None for all components.

  Raises:
    UserError: the path holds nothing that is known, or what
      `transforms.truncate` raises.
  """
  weights = _read(path, step)
  return weights if dim is None else transforms.truncate(weights, dim)


def _read(path: str | os.PathLike[str], step: int | None) -> Weights:
  name, folder = detect(path), _expand(path)
  if name == MODEL_DIR:
    return checkpoint_reader.read(folder, step)
  if step is not None:
    raise UserError(
        f'{path} is not a model_dir, so it has no steps. Leave out the step.'
    )
  if '://' in str(path):
    return t5x.read(path)
  untrusted.check_folder(folder, _AGAIN)
  weights = _FORMATS[name].read(folder)
  above = folder if (folder / USAGE_FILE).is_file() else folder.parent
  if not (above / USAGE_FILE).is_file():
    return weights
  again = (
      'Convert the model again, or remove the file and give lengths and'
      ' prefixes.'
  )
  facts = json_file.read(above / USAGE_FILE, again, **USAGE)
  usage = weights.usage.updated(facts, above)
  return dataclasses.replace(weights, usage=usage)


def load(
    path: str | os.PathLike[str], dim: int | None = None, **given: Any
) -> LoadedModel:
  """Loads a checkpoint on the devices of this host; no config is run.

  Args:
    path: as of `read`; of a model_dir the best checkpoint that can be read.
    dim: as of `read`.
    **given: arguments of `loading.load`, for a checkpoint without a vocabulary
      or lengths of its own.

  Raises:
    UserError: as `read` and `loading.load`; or it is a query tower alone.
  """
  if detect(path) == MODEL_DIR:
    if given:
      raise UserError(
          f'{path} has its own vocabulary and lengths: leave out'
          f' {", ".join(given)}.'
      )
    return loading.load_model_dir(_expand(path), dim=dim)
  weights = read(path, dim=dim)
  if weights.passage_tower:
    raise UserError(
        f'{path} ({weights.kind}) has only a query tower and cannot encode'
        ' passages. To search an index with it, convert it --to=jax_export.'
    )
  return loading.load(weights, **given)
