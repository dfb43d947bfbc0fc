"""Models made of models: cut embeddings, towers apart and together, the mean.

A model whose embeddings are cut to d components has the first d columns of the
kernel of the projection, [E, D], and norm one again. So it is a model like any
other, with its own digest, indexes and forms.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import logging
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import Projection
from dualenc_jax.retrieval.encoding import tower_digest
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

_PARTS = 'token_embedder', 'encoder', 'projection'
_PROJECTIONS = 'projection', 'passage_projection'
_LOG = logging.getLogger(__name__)


def truncate(weights: Weights, dim: int) -> Weights:
  """Cuts the embeddings of a checkpoint to `dim` of their D components."""
  if weights.passage_tower:
    raise UserError(
        f'{weights.path} has only a query tower, which needs the whole'
        ' embeddings of its passage tower. Leave out the dim, or cut the'
        f' original model: `dualenc convert MODEL --tower=query --dim={dim}`.'
    )
  described = {
      name: {**value, 'features': dim}
      if name in _PROJECTIONS and value
      else value
      for name, value in weights.described.items()
  }
  return dataclasses.replace(
      weights,
      tensors=_cut(weights.tensors, dim, weights.trained_dims, weights.path),
      described=described,
      trained_dims=tuple(d for d in weights.trained_dims if d <= dim),
      # A codec that was trained with the model is for whole embeddings.
      codec=None,
  )


def truncate_model(
    model: Any, tensors: Mapping[str, Tensor], dim: int,
    trained_dims: Sequence[int], path: str,
) -> tuple[Any, Mapping[str, Tensor]]:
  """Cuts a module, which may be of a user's own class, and its parameters.

  `trained_dims` are those that its embeddings were trained for.
  """
  parts = {name: getattr(model, name, None) for name in _PROJECTIONS}
  if parts['projection'] is None or not all(
      isinstance(part, Projection | None) for part in parts.values()
  ):
    raise UserError(
        f'{path} cannot be cut to {dim} components: its projections are'
        f' {parts}; expected models.Projection, whose kernel has a column for'
        ' each component.'
    )
  cut = {n: part.clone(features=dim) for n, part in parts.items() if part}
  return model.clone(**cut), _cut(tensors, dim, trained_dims, path)


def truncate_provenance(
    whole: Mapping[str, Any], dim: int | None
) -> dict[str, Any]:
  """The provenance of a model that is cut to `dim`, unless that is None."""
  if dim is None:
    return dict(whole)
  trained_dims = [d for d in whole.get(TRAINED_DIMS, ()) if d <= dim]
  return {**whole, 'dim': dim, TRAINED_DIMS: trained_dims}


def _cut(
    tensors: Mapping[str, Tensor], dim: int, trained_dims: Sequence[int],
    path: str,
) -> dict[str, Tensor]:
  kernels = [
      kernel for part in _PROJECTIONS if (kernel := f'{part}/kernel') in tensors
  ]
  if not kernels:
    raise UserError(
        f'{path} has no projection to cut to {dim} components. Leave out the'
        ' dim, or give a dual encoder.'
    )
  whole = tensors[kernels[0]].shape[-1]
  sizes = f'1 to {whole}, the components of the embeddings of {path}'
  expect(1 <= dim <= whole, 'The dim', dim, sizes)
  _warn_untrained(dim, whole, trained_dims, path)
  return {**tensors, **{name: tensors[name].columns(dim) for name in kernels}}


def warn_untrained_codec(codec: Any, model: Any, path: str) -> None:
  """Warns of a codec that cuts embeddings to a dim that was not trained."""
  # Behind another map the first components are not those of the embeddings.
  first = next(iter(codec.parts), None)
  if first is not None and first.kind == 'truncate':
    trained_dims = model.provenance.get(TRAINED_DIMS, ())
    _warn_untrained(first.number, model.dim, trained_dims, path)


def _warn_untrained(
    dim: int, whole: int, trained_dims: Sequence[int], path: str
) -> None:
  if dim not in (whole, *trained_dims):
    known = ', '.join(map(str, trained_dims)) or f'all {whole} alone'
    _LOG.warning(
        '%s is cut to %d components, and was trained for %s. Expect worse'
        ' embeddings; `dualenc evaluate --codecs=truncate:%d` measures them.',
        path, dim, known, dim,
    )


def join_towers(
    query: Weights, passage: Weights, path: pathlib.Path
) -> Weights:
  """Joins two towers; parts that are equal bit for bit are shared.

  `left_out` is that of the query tower alone. UserError if the towers have
  different vocabularies.
  """
  own = [part for part in _PARTS if not _is_same_part(query, passage, part)]
  tensors = {
      f'passage_{name}': tensor
      for name, tensor in passage.tensors.items()
      if name.partition('/')[0] in own
  }
  files = [w.usage.vocabulary for w in (query, passage)]
  sides: list[Any] = [file.read_bytes() for file in files if file]
  if len(sides) < 2:
    sides = [(w.usage.vocabulary, w.usage.pieces) for w in (query, passage)]
  if sides[0] != sides[1]:
    raise UserError(
        f'{path}: query and passage have different vocabularies. Expected one'
        ' vocabulary for both towers.'
    )
  length = passage.usage.passage_length
  return dataclasses.replace(
      query, path=str(path), tensors={**query.tensors, **tensors},
      passage_encoder=passage.encoder if 'encoder' in own else None,
      usage=dataclasses.replace(query.usage, passage_length=length),
  )


def _is_same_part(query: Weights, passage: Weights, part: str) -> bool:
  if part == 'encoder' and query.encoder != passage.encoder:
    return False
  pairs = [
      (tensor, passage.tensors[name])
      for name, tensor in query.tensors.items()
      if name.partition('/')[0] == part
  ]
  return all(
      a.where == b.where or (a.shape == b.shape and digest(a) == digest(b))
      for a, b in pairs
  )


def digest(tensor: Tensor) -> bytes:
  """The SHA-256 of the numbers: large tables are compared one after another."""
  return hashlib.sha256(np.ascontiguousarray(tensor.read()).data).digest()


def split_towers(weights: Weights) -> tuple[Weights, Weights]:
  """The query and the passage tower, each as if it were the only one."""
  query: dict[str, Tensor] = {}
  passage: dict[str, Tensor] = {}
  for name, tensor in weights.tensors.items():
    side = passage if name.startswith('passage_') else query
    side[name.removeprefix('passage_')] = tensor
  own = {name.partition('/')[0] for name in passage}
  shared = {n: t for n, t in query.items() if n.partition('/')[0] not in own}
  usage = weights.usage

  def tower(tensors, encoder, length):
    lengths = dataclasses.replace(
        usage, query_length=length, passage_length=length
    )
    return dataclasses.replace(
        weights, tensors=tensors, encoder=encoder, passage_encoder=None,
        usage=lengths,
    )

  passage_encoder = weights.passage_encoder or weights.encoder
  return (
      tower(query, weights.encoder, usage.query_length),
      tower(passage | shared, passage_encoder, usage.passage_length),
  )


def query_tower(weights: Weights) -> Weights:
  """The query tower alone, with the digest of its passage tower.

  A query tower alone is returned as it is. UserError where a tensor of the
  passage tower cannot be read.
  """
  if weights.passage_tower:
    return weights
  usage = weights.usage
  assert usage.passage_length is not None
  sha256 = tower_digest.digest(weights.tensors, weights.model(), 'passage')
  passage = PassageTower(usage.passage_length, usage.passage_prefix, sha256)
  return dataclasses.replace(
      split_towers(weights)[0], usage=usage, described={}, trained_dims=(),
      passage_tower=passage,
  )


def merge(models: Sequence[Weights]) -> Weights:
  """The mean of two or more models of one architecture, tensor by tensor.

  One tensor of each model is in memory at a time. Sums are float64, the mean is
  float32.
  """
  first = models[0]
  for other in models[1:]:
    for name, a, b in _find_differences(first, other):
      raise UserError(
          f'--merge: {name} of {first.path} is {a}, of {other.path} {b}.'
          ' Expected checkpoints of one architecture, vocabulary and usage.'
      )
  for model in models:
    if model.codec is not None:
      raise UserError(
          f'--merge: {model.path} has its own trained codec,'
          f' {model.codec.name}, which a mean cannot use. Convert it'
          ' --to=hf first, which leaves the codec out.'
      )
  path = ', '.join(
      f'{pathlib.Path(model.path).name} at step {model.step}'
      for model in models
  )
  tensors = {
      name: Tensor(name, tensor.shape, functools.partial(
          _mean, [model.tensors[name] for model in models]
      ))
      for name, tensor in first.tensors.items()
  }
  step = max(model.step or 0 for model in models)
  return dataclasses.replace(
      first, kind='mean', path=path, tensors=tensors, loss={}, step=step
  )


def _mean(tensors: Sequence[Tensor]) -> np.ndarray:
  total = np.zeros(tensors[0].shape, np.float64)
  for tensor in tensors:
    total += tensor.read()
  return (total / len(tensors)).astype(np.float32)


def _find_differences(*models: Weights) -> Iterator[tuple[str, Any, Any]]:
  """Yields facts in which two models differ: name, and both values."""
  a, b = map(_collect_facts, models)
  for name in {**a, **b}:
    values = a.get(name, 'absent'), b.get(name, 'absent')
    if values[0] != values[1]:
      yield name, *values


def _collect_facts(model: Weights) -> dict[str, str]:
  facts: dict[str, Any] = {
      f'the shape of {name}': tensor.shape
      for name, tensor in sorted(model.tensors.items())
  }
  usage = model.usage
  vocabulary = Vocabulary(str(usage.vocabulary), **usage.special_tokens)
  facts['the SHA-256 of the vocabulary'] = vocabulary.sha256
  facts |= model.settings()
  facts['trained_dims'] = tuple(model.trained_dims)
  return {name: str(value) for name, value in facts.items()}
