"""Two towers that lie apart, each as if it were alone, and their joint form."""

import dataclasses
import hashlib
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.inference import tower_digest
from dualenc_jax.inference.towers import PassageTower
from dualenc_jax.interop.weights import Usage, Weights
from dualenc_jax.models import T5Encoder
from dualenc_jax.tensor_files.tensors import Tensor

_PARTS = ('token_embedder', 'encoder', 'projection')


def join(
    query: Weights, passage: Weights, path: pathlib.Path
) -> tuple[dict[str, Tensor], T5Encoder | None, Usage]:
  """One model of two towers; parts that are equal bit for bit are shared.

  Args:
    query: the query tower.
    passage: the passage tower.
    path: of both, for messages.

  Returns:
    The tensors, the passage encoder if it is not shared, and the usage.

  Raises:
    UserError: the vocabularies differ, or a tensor cannot be read.
  """
  own = [part for part in _PARTS if not _same_part(query, passage, part)]
  tensors = {
      f'passage_{name}': tensor
      for name, tensor in passage.tensors.items()
      if name.partition('/')[0] in own
  }
  if query.usage.vocabulary and passage.usage.vocabulary:
    sides = [w.usage.vocabulary.read_bytes() for w in (query, passage)]
  else:
    sides = [(w.usage.vocabulary, w.usage.pieces) for w in (query, passage)]
  if sides[0] != sides[1]:
    raise UserError(
        f'{path}: query and passage have different vocabularies. Both towers of'
        ' a dual encoder read one.'
    )
  usage = dataclasses.replace(
      query.usage, passage_length=passage.usage.passage_length
  )
  encoder = passage.encoder if 'encoder' in own else None
  return {**query.tensors, **tensors}, encoder, usage


def split(weights: Weights) -> tuple[Weights, Weights]:
  """The query and the passage tower, each as if it were alone."""
  query, passage = {}, {}
  for name, tensor in weights.tensors.items():
    side = passage if name.startswith('passage_') else query
    side[name.removeprefix('passage_')] = tensor
  own = {name.partition('/')[0] for name in passage}
  shared = [name for name in query if name.partition('/')[0] not in own]
  passage |= {name: query[name] for name in shared}
  usage = weights.usage
  alone = dataclasses.replace(weights, passage_encoder=None)
  return (
      dataclasses.replace(
          alone,
          tensors=query,
          usage=dataclasses.replace(usage, passage_length=usage.query_length),
      ),
      dataclasses.replace(
          alone,
          tensors=passage,
          encoder=weights.passage_encoder or weights.encoder,
          usage=dataclasses.replace(usage, query_length=usage.passage_length),
      ),
  )


def query_alone(weights: Weights) -> Weights:
  """The query tower, which knows the passage tower that it belongs to.

  Args:
    weights: a dual encoder with its lengths; a query tower alone stays.

  Raises:
    UserError: a tensor of the passage tower cannot be read.
  """
  if weights.passage_tower:
    return weights
  usage = weights.usage
  alone, _ = split(weights)
  sha256 = tower_digest.digest(weights.tensors, weights.model(), 'passage')
  return dataclasses.replace(
      alone,
      usage=usage,
      described={},
      trained_dims=(),
      passage_tower=PassageTower(
          usage.passage_length, usage.passage_prefix, sha256
      ),
  )


def digest(tensor: Tensor) -> bytes:
  """Of the numbers, so that two large tables are compared one after another."""
  return hashlib.sha256(np.ascontiguousarray(tensor.read())).digest()


def _same_part(query: Weights, passage: Weights, part: str) -> bool:
  """Whether all tensors of a part are equal, bit for bit."""
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
