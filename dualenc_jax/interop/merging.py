"""The mean of checkpoints of one architecture, tensor by tensor."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.interop.weights import ENCODERS, Weights
from dualenc_jax.tensor_files.tensors import Tensor
from dualenc_jax.text.tokenizer import Vocabulary


def merge(models: Sequence[Weights], shares: Sequence[float]) -> Weights:
  """The mean of models; a tensor of each is in memory at a time.

  Args:
    models: two at least, each with its vocabulary.
    shares: positive, one for each; they are divided by their sum. Sums are
      float64, the mean float32.

  Raises:
    UserError: they differ in a tensor's shape, in an encoder, vocabulary,
      length, prefix or another fact, or in the text of a prompt of one name; or
      a codec was trained with one.
  """
  first = models[0]
  for other in models[1:]:
    if found := next(_differences(first, other), None):
      name, a, b = found
      raise UserError(
          f'--merge: {name} of {first.path} is {a}, of {other.path} {b}.'
          ' Expected checkpoints of one architecture, vocabulary and usage,'
          ' best of runs from the same INITIAL_CHECKPOINT_PATH.'
      )
  for model in models:
    if model.codec is not None:
      raise UserError(
          f'--merge: {model.path} has a codec, {model.codec.name}, trained with'
          ' it, which is not of a mean. Convert it --to=safetensors first,'
          ' which leaves it out.'
      )
  prompts = _prompts(models)
  factors = np.asarray(shares, np.float64) / np.sum(shares)
  names = [pathlib.Path(model.path).name for model in models]
  parts = [
      f'{factor:.3g} of {name} at step {model.step}'
      for factor, name, model in zip(factors, names, models)
  ]
  return dataclasses.replace(
      first,
      kind='mean',
      path=', '.join(parts),
      tensors={
          name: Tensor(
              name,
              tensor.shape,
              lambda name=name: _mean(
                  [m.tensors[name] for m in models], factors
              ),
          )
          for name, tensor in first.tensors.items()
      },
      usage=dataclasses.replace(first.usage, prompts=prompts),
      optimizer={},
      loss={},
      step=max(model.step or 0 for model in models),
  )


def _prompts(models: Sequence[Weights]) -> Mapping[str, str]:
  """Those of all models, which are no parameters; one text a name."""
  found = {}
  for model in models:
    for name, text in model.usage.prompts.items():
      other, known = found.setdefault(name, (model, text))
      if text != known:
        raise UserError(
            f'--merge: the prompt {name!r} of {other.path} is {known!r}, of'
            f' {model.path} {text!r}. Expected one text a name. Convert one of'
            ' them --to=sentence_transformers, give the prompt another name in'
            ' its config_sentence_transformers.json, and merge that folder.'
        )
  return {name: text for name, (_, text) in found.items()}


def _mean(tensors: Sequence[Tensor], factors: np.ndarray) -> np.ndarray:
  total = np.zeros(tensors[0].shape, np.float64)
  for tensor, factor in zip(tensors, factors, strict=True):
    total += factor * tensor.read()
  return total.astype(np.float32)


def _differences(a: Weights, b: Weights) -> Iterator[tuple[str, str, str]]:
  """In what two models differ: (name, of the one, of the other)."""
  for name in sorted(a.tensors.keys() | b.tensors.keys()):
    shapes = [
        str(w.tensors[name].shape) if name in w.tensors else 'absent'
        for w in (a, b)
    ]
    if shapes[0] != shapes[1]:
      yield (f'the shape of {name}', *shapes)
  pairs = [
      (f'{tower}.{field.name}', *(getattr(e, field.name) for e in encoders))
      for tower in ENCODERS
      if all(encoders := [getattr(w, tower) for w in (a, b)])
      for field in dataclasses.fields(encoders[0])
      if field.name not in ('parent', 'name')
  ]
  vocabularies = [Vocabulary(str(w.usage.vocabulary)).sha256 for w in (a, b)]
  pairs += [('the SHA-256 of the vocabulary', *vocabularies)]
  facts = [w.usage.facts() for w in (a, b)]
  for name in sorted((facts[0].keys() | facts[1].keys()) - {'prompts'}):
    pairs.append((name, *(f.get(name) for f in facts)))
  for name in ('trained_dims', 'passage_tower'):
    pairs.append((name, getattr(a, name), getattr(b, name)))
  classes = [w.described.get('class') for w in (a, b)]
  if all(classes):
    pairs.append(('the class', *classes))
  yield from ((name, str(x), str(y)) for name, x, y in pairs if x != y)
