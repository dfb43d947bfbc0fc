"""Reads a `model_dir` of this library: the newest checkpoint in it."""

import ast
from collections.abc import Mapping
import pathlib
import re
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.interop.weights import infer_encoder, Usage, Weights
from dualenc_jax.tensor_files import orbax_tree
from dualenc_jax.tensor_files.tensors import Tensor
from dualenc_jax.training.checkpoints import Checkpoints

KIND = 'dualenc_jax model_dir'
VOCABULARY = 'vocabulary.model'


def is_one(path: pathlib.Path) -> bool:
  """Whether training wrote this folder."""
  return (path / 'checkpoints').is_dir() and (path / 'config.gin').is_file()


def read(path: pathlib.Path, step: int | None = None) -> Weights:
  """The newest (or a chosen) checkpoint, read lazily.

  Args:
    path: a `model_dir`.
    step: of the checkpoint, None for the newest.

  Raises:
    UserError: there is no such checkpoint.
  """
  checkpoints = Checkpoints(path)
  steps = checkpoints.steps()
  if not steps or (step is not None and step not in steps):
    wanted = f' of step {step}' if steps else ' yet'
    known = f'; it has {", ".join(map(str, steps))}' if steps else ''
    raise UserError(
        f'{path} has no checkpoint{wanted}{known}. Train first, or give the'
        ' folder of a trained model.'
    )
  step = steps[-1] if step is None else step
  folder, meta = checkpoints.folder / str(step), checkpoints.meta(step)
  everything = unstack(orbax_tree.read_tree(folder / 'params'))
  loss = {n: t for n, t in everything.items() if n.startswith('loss/')}
  tensors = {n: t for n, t in everything.items() if n not in loss}
  encoders = {
      tower: infer_encoder(tensors, _activations(meta, tower, path), tower)
      for tower in ('encoder', 'passage_encoder')
      if any(name.startswith(f'{tower}/') for name in tensors)
  }
  vocabulary, data = path / VOCABULARY, meta['data']
  return Weights(
      KIND,
      str(path),
      tensors,
      encoders.get('encoder') or infer_encoder(tensors),
      encoders.get('passage_encoder'),
      Usage(
          vocabulary if vocabulary.exists() else None,
          None,
          data['query_length'],
          data['passage_length'],
          data.get('query_prefix', ''),
          data.get('passage_prefix', ''),
      ),
      loss=loss,
      optimizer=_statistics(folder / 'optimizer'),
      step=step,
  ).check()


def unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  """One tensor a layer out of those that `scan_layers` has stacked."""
  layers = {}
  for name, tensor in tensors.items():
    before, stacked, after = name.partition('/layers/')
    if not stacked:
      layers[name] = tensor
      continue
    for i in range(tensor.shape[0]):
      layers[f'{before}/layers_{i}/{after}'] = tensor.entry(0, i)
  return layers


def _activations(
    meta: Mapping[str, Any], tower: str, path: pathlib.Path
) -> tuple[str, ...]:
  """Those of a tower, of which its tensors say nothing."""
  if 'activations' in meta:
    return tuple(meta['activations'][tower])
  # Before they were saved beside the tensors, the config said them.
  config = meta['config']
  scopes = ('passage/', '') if tower == 'passage_encoder' else ('',)
  for scope in scopes:
    pattern = rf'^{scope}models\.T5Encoder\.activations = (\(.*?\))'
    found = re.findall(pattern, config, re.MULTILINE | re.DOTALL)
    if len(found) == 1:
      return ast.literal_eval(found[0])
  raise UserError(
      f'{path} does not say which activations its {tower} has: its config gives'
      ' them by a macro or a scope. Go on with its training for a step: new'
      ' checkpoints say it.'
  )


def _statistics(folder: pathlib.Path) -> dict[str, Tensor]:
  """Optimizer statistics by parameter: 'encoder/.../kernel/v_row'; 'count'."""
  if not orbax_tree.is_tree(folder):
    return {}
  tree, found = orbax_tree.read_tree(folder), {}
  for name, tensor in tree.items():
    if match := re.fullmatch(r'(.*/)?(v_row|v_col|v|mu|nu)/(.+)', name):
      prefix, kind, parameter = match.groups()
      for part, t in unstack({parameter: tensor}).items():
        found[f'{part}/{kind}'] = t
      if (count := f'{prefix or ""}count') in tree:
        found['count'] = tree[count]
  return found
