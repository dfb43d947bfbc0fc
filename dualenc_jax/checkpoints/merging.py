"""The mean of checkpoints of one architecture, tensor by tensor."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints.weights import ENCODERS, Weights
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor


def merge(models: Sequence[Weights], shares: Sequence[float]) -> Weights:
  """The mean of models; a tensor of each is in memory at a time.

  Args:
    models: two at least, each with its vocabulary.
    shares: positive, one for each; they are divided by their sum. Sums are
      float64, the mean float32.
  """
  first = models[0]
  for other in models[1:]:
    for name, a, b in _differences(first, other):
      raise UserError(
          f'--merge: {name} of {first.path} is {a}, of {other.path} {b}.'
          ' Expected checkpoints of one architecture, vocabulary and usage,'
          ' best of runs from the same INITIAL_CHECKPOINT_PATH.'
      )
  for model in models:
    if model.codec is not None:
      raise UserError(
          f'--merge: {model.path} has its own trained codec,'
          f' {model.codec.name}, which a mean cannot use. Convert it'
          ' --to=safetensors first, which leaves the codec out.'
      )
  factors = np.asarray(shares, np.float64) / np.sum(shares)
  path = ', '.join(
      f'{factor:.3g} of {pathlib.Path(model.path).name} at step {model.step}'
      for factor, model in zip(factors, models)
  )
  tensors = {
      name: Tensor(name, tensor.shape, functools.partial(
          _mean, [model.tensors[name] for model in models], factors
      ))
      for name, tensor in first.tensors.items()
  }
  usage = dataclasses.replace(first.usage, prompts=_prompts(models))
  step = max(model.step or 0 for model in models)
  return dataclasses.replace(
      first, kind='mean', path=path, tensors=tensors, usage=usage, optimizer={},
      loss={}, step=step,
  )


def _prompts(models: Sequence[Weights]) -> Mapping[str, str]:
  """Those of all models, which are no parameters; one text a name."""
  found: dict[str, tuple[Weights, str]] = {}
  for model in models:
    for name, text in model.usage.prompts.items():
      other, known = found.setdefault(name, (model, text))
      if text != known:
        raise UserError(
            f'--merge: the prompt {name!r} of {other.path} is {known!r}, of'
            f' {model.path} {text!r}. Expected one text per name. Convert one'
            ' of them --to=sentence_transformers, give the prompt another name'
            ' in its config_sentence_transformers.json, and merge that folder.'
        )
  return {name: text for name, (_, text) in found.items()}


def _mean(tensors: Sequence[Tensor], factors: np.ndarray) -> np.ndarray:
  total = np.zeros(tensors[0].shape, np.float64)
  for tensor, factor in zip(tensors, factors, strict=True):
    total += factor * tensor.read()
  return total.astype(np.float32)


def _differences(*models: Weights) -> Iterator[tuple[str, Any, Any]]:
  """In what two models differ: (name, of the one, of the other)."""
  facts = [_facts(model) for model in models]
  a, b = ({n: str(x) for n, x in own.items()} for own in facts)
  for name in [*a, *(name for name in b if name not in a)]:
    if a.get(name, 'absent') != b.get(name, 'absent'):
      yield name, a.get(name, 'absent'), b.get(name, 'absent')
  classes = [model.described.get('class') for model in models]
  if all(classes) and classes[0] != classes[1]:
    yield 'the class', classes[0], classes[1]


def _facts(model: Weights) -> dict[str, Any]:
  """All that must be the same, by name."""
  facts: dict[str, Any] = {
      f'the shape of {name}': tensor.shape
      for name, tensor in sorted(model.tensors.items())
  }
  for tower in ENCODERS:
    if (encoder := getattr(model, tower)) is not None:
      for field in dataclasses.fields(encoder):
        if field.name not in ('parent', 'name'):
          facts[f'{tower}.{field.name}'] = getattr(encoder, field.name)
  vocabulary = Vocabulary(str(model.usage.vocabulary))
  facts['the SHA-256 of the vocabulary'] = vocabulary.sha256
  facts |= {n: x for n, x in model.usage.facts().items() if 'prompt' not in n}
  for name in ('trained_dims', 'passage_tower'):
    facts[name] = getattr(model, name)
  return facts
