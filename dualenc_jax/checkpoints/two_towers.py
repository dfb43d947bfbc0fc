"""Two towers that lie apart, each as if it were alone, and their joint form."""

import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.retrieval.encoding import tower_digest
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

_PARTS = ('token_embedder', 'encoder', 'projection')


def join(query: Weights, passage: Weights, path: pathlib.Path) -> Weights:
  """One model of two towers; parts that are equal bit for bit are shared.

  What is left out is the query tower's alone. UserError if the towers have
  different vocabularies.
  """
  own = [part for part in _PARTS if not _same_part(query, passage, part)]
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


def split(weights: Weights) -> tuple[Weights, Weights]:
  """The query and the passage tower, each as if it were alone."""
  query: dict[str, Tensor] = {}
  passage: dict[str, Tensor] = {}
  for name, tensor in weights.tensors.items():
    side = passage if name.startswith('passage_') else query
    side[name.removeprefix('passage_')] = tensor
  own = {name.partition('/')[0] for name in passage}
  shared = {n: t for n, t in query.items() if n.partition('/')[0] not in own}
  towers = []
  for tensors, encoder, length in (
      (query, weights.encoder, weights.usage.query_length),
      (
          passage | shared,
          weights.passage_encoder or weights.encoder,
          weights.usage.passage_length,
      ),
  ):
    usage = dataclasses.replace(
        weights.usage, query_length=length, passage_length=length
    )
    towers.append(
        dataclasses.replace(
            weights, tensors=tensors, encoder=encoder, passage_encoder=None,
            usage=usage,
        )
    )
  return towers[0], towers[1]


def query_alone(weights: Weights) -> Weights:
  """The query tower, which knows the passage tower that it belongs to.

  A query tower alone stays as it is. UserError where a tensor of the passage
  tower cannot be read.
  """
  if weights.passage_tower:
    return weights
  usage = weights.usage
  assert usage.passage_length is not None
  sha256 = tower_digest.digest(weights.tensors, weights.model(), 'passage')
  tower = PassageTower(usage.passage_length, usage.passage_prefix, sha256)
  return dataclasses.replace(
      split(weights)[0], usage=usage, described={}, trained_dims=(),
      passage_tower=tower,
  )


def digest(tensor: Tensor) -> bytes:
  """The SHA-256 of the numbers: large tables are compared one after another."""
  return hashlib.sha256(np.ascontiguousarray(tensor.read()).data).digest()


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
