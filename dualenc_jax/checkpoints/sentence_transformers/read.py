"""Reads a folder of sentence-transformers as two towers."""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.checkpoints import hugging_face, two_towers
from dualenc_jax.checkpoints.sentence_transformers import modules
from dualenc_jax.checkpoints.sentence_transformers.modules import Tower
from dualenc_jax.checkpoints.weights import PROJECTION, Weights
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

KIND = 'sentence-transformers folder'
KERNEL, BIAS = hugging_face.LINEAR, 'linear.bias'


def is_one(path: pathlib.Path) -> bool:
  """Whether it is a folder that sentence-transformers has saved."""
  return (path / modules.MODULES).is_file()


def read(path: pathlib.Path) -> Weights:
  """The towers of a folder: Transformer, Pooling, Dense, Normalize.

  A passage tower's part that equals the query tower's bit for bit is shared. A
  folder without Normalize is taken if its vectors are compared by cosine, which
  is the same for vectors of norm one, as ours always are.
  The modules may lie below a Router of queries and documents.
  """
  towers = modules.read_towers(path)
  by_tower = {t: _read_tower(t, path) for t in dict.fromkeys(towers)}
  query, passage = (by_tower[tower] for tower in towers)
  joint = two_towers.join(query, passage, path)
  lengths = {
      f'{side}_length': modules.read_length(tower.transformer, task)
      for side, task, tower in zip(
          ('query', 'passage'), ('query', 'document'), towers
      )
  }
  facts: dict[str, Any] = {n: x for n, x in lengths.items() if x}
  facts |= modules.read_prompts(path)
  return dataclasses.replace(
      joint, kind=query.kind if query.kind != KIND else passage.kind,
      usage=dataclasses.replace(joint.usage, **facts),
      left_out={**query.left_out, **passage.left_out},
  ).check()


def _read_tower(tower: Tower, path: pathlib.Path) -> Weights:
  """A tower as if it were the only one."""
  _check_tower(tower, path)
  transformer = hugging_face.read(tower.transformer)
  kernel, left_out = _read_dense(tower.dense, path)
  return dataclasses.replace(
      transformer,
      kind=KIND if tower.normalize else f'{KIND} without Normalize',
      tensors={**transformer.tensors, PROJECTION: kernel},
      left_out=_located(tower.transformer, path, transformer.left_out)
      | _located(tower.dense, path, left_out),
  )


def _check_tower(tower: Tower, path: pathlib.Path) -> None:
  """Raises UserError if a module does something else than ours."""
  _refuse_pickle(tower.transformer, path)
  pooling = tower.pooling / 'config.json'
  settings = modules.read_settings(pooling, 'Pooling')
  if not settings.keys() & {'pooling_mode', 'pooling_mode_mean_tokens'}:
    raise UserError(
        f'{pooling} names no pooling; expected pooling_mode "mean". Copy the'
        ' whole folder.'
    )
  if tower.normalize:
    modules.read_settings(tower.normalize / 'config.json', 'Normalize')
  elif (similarity := modules.similarity(path)) != 'cosine':
    raise UserError(
        f'{path / modules.MODULES} names no Normalize, and {modules.CONFIG}'
        f' compares vectors by {similarity!r}. Vectors of this library have'
        ' norm one, so scores would differ; expected Normalize, or cosine.'
    )


def _read_dense(
    folder: pathlib.Path, path: pathlib.Path
) -> tuple[Tensor, dict[str, str]]:
  """The kernel [E, D] of a Dense, and the tensors that are left out."""
  config = folder / 'config.json'
  settings = modules.read_settings(config, 'Dense')
  if 'activation_function' not in settings:
    raise UserError(
        f'{config} names no activation_function; expected'
        f' {modules.IDENTITIES[0]}.'
        ' Copy the whole folder.'
    )
  _refuse_pickle(folder, path)
  tensors = safetensors_file.read(folder)
  # The library's default is a bias.
  expected = {KERNEL, BIAS} if settings.get('bias', True) else {KERNEL}
  if tensors.keys() != expected:
    raise UserError(
        f'{folder} holds the tensors {", ".join(sorted(tensors))}; expected'
        f' {", ".join(sorted(expected))}, as {config.name} says.'
    )
  kernel, bias = tensors[KERNEL], tensors.get(BIAS)
  sizes = settings.get('out_features'), settings.get('in_features')
  if kernel.shape != sizes:
    raise UserError(
        f'{kernel.where} has the shape {kernel.shape}, but {config} says'
        f' (out_features, in_features) = {sizes}. Copy the whole folder.'
    )
  if bias is not None and bias.read().any():
    raise UserError(
        f'{bias.where} is not zero: the projection of this library has no bias.'
        ' Train a Dense without one.'
    )
  return kernel.transposed(), {} if bias is None else {BIAS: 'zero'}


def _refuse_pickle(folder: pathlib.Path, path: pathlib.Path) -> None:
  """Raises UserError if the only weights of a module are a pickle."""
  pickles = sorted(folder.glob('pytorch_model*.bin'))
  if pickles and not any(folder.glob('*.safetensors')):
    raise UserError(
        f'{pickles[0]} is a pickle, which can run any code when it is opened.'
        ' If you trust it, convert the folder where sentence-transformers is'
        ' installed, and give the new one: python -c "from'
        ' sentence_transformers import SentenceTransformer;'
        f" SentenceTransformer('{path}').save_pretrained('{path}-safe',"
        ' safe_serialization=True)"'
    )


def _located(
    module: pathlib.Path, path: pathlib.Path, left_out: Mapping[str, str]
) -> dict[str, str]:
  """The same with the module's folder in front of each name."""
  folder = module.relative_to(path)
  return {str(folder / name): reason for name, reason in left_out.items()}
