"""A model whose embeddings are the first components of another's.

The kernel of a projection, [E, D], is cut to its first columns, [E, d]: what
comes out is the first d components of the embeddings, of length one again. So
it is a model like any other, with a digest, indexes and forms of its own.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import logging
from typing import Any

from dualenc_jax.checkpoints.model_dirs import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.models import Projection
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

_PARTS = ('projection', 'passage_projection')
_LOG = logging.getLogger(__name__)


def of_weights(whole: Weights, dim: int) -> Weights:
  """A checkpoint of any form, cut to `dim` of its D components."""
  if whole.passage_tower:
    raise UserError(
        f'{whole.path} has only a query tower, which needs the whole embeddings'
        ' of its passage tower. Leave out the dim, or cut the original model:'
        f' `dualenc convert MODEL --tower=query --dim={dim}`.'
    )
  described = {
      name: {**value, 'features': dim} if name in _PARTS and value else value
      for name, value in whole.described.items()
  }
  return dataclasses.replace(
      whole,
      tensors=_cut(whole.tensors, dim, whole.trained_dims, whole.path),
      described=described,
      trained_dims=tuple(d for d in whole.trained_dims if d <= dim),
      # One that was trained with the model is of whole embeddings.
      codec=None,
  )


def of_model(
    whole: Any, tensors: Mapping[str, Tensor], dim: int,
    trained_dims: Sequence[int], path: str,
) -> tuple[Any, Mapping[str, Tensor]]:
  """A module and its parameters, cut; it may be of a class of the user's own.

  Its embeddings have D components, of which `trained_dims` are what it was
  trained for.
  """
  parts = {name: getattr(whole, name, None) for name in _PARTS}
  others = {
      name: type(part).__name__
      for name, part in parts.items()
      if not isinstance(part, Projection | None)
  }
  if others or parts['projection'] is None:
    found = others or {'projection': 'none'}
    raise UserError(
        f'{path} cannot be cut to {dim} components: its'
        f' {" and ".join(f"{n} is {k}" for n, k in found.items())}. Expected'
        ' models.Projection, whose kernel has a column for each component.'
    )
  cut = {n: part.clone(features=dim) for n, part in parts.items() if part}
  return whole.clone(**cut), _cut(tensors, dim, trained_dims, path)


def of_provenance(whole: Mapping[str, Any], dim: int | None) -> dict[str, Any]:
  """The provenance of a model that is cut to `dim`, if to any."""
  if dim is None:
    return dict(whole)
  trained_dims = [d for d in whole.get(TRAINED_DIMS, ()) if d <= dim]
  return {**whole, 'dim': dim, TRAINED_DIMS: trained_dims}


def _cut(
    tensors: Mapping[str, Tensor], dim: int, trained_dims: Sequence[int],
    path: str,
) -> dict[str, Tensor]:
  kernels = [f'{part}/kernel' for part in _PARTS if f'{part}/kernel' in tensors]
  if not kernels:
    raise UserError(
        f'{path} has no projection to cut to {dim} components. Leave out the'
        ' dim, or give a dual encoder.'
    )
  whole = tensors[kernels[0]].shape[-1]
  sizes = f'1 to {whole}, the components of the embeddings of {path}'
  expect(1 <= dim <= whole, 'The dim', dim, sizes)
  _warn(dim, whole, trained_dims, path)
  return {**tensors, **{name: tensors[name].columns(dim) for name in kernels}}


def warn_of(codec: Any, model: Any, path: str) -> None:
  """Warns of a codec that cuts embeddings to what no model was trained for."""
  # Behind another map the first components are not those of the embeddings.
  first = next(iter(codec.parts), None)
  if first is not None and first.kind == 'truncate':
    trained_dims = model.provenance.get(TRAINED_DIMS, ())
    _warn(first.number, model.dim, trained_dims, path)


def _warn(dim: int, whole: int, trained_dims: Sequence[int], path: str) -> None:
  if dim in (whole, *trained_dims):
    return
  known = ', '.join(map(str, trained_dims)) or (
      f'all {whole} alone, as far as its files say: without'
      ' --gin_file=losses/matryoshka.gin'
  )
  _LOG.warning(
      '%s is cut to %d components, and was trained for %s. Expect worse'
      ' embeddings; `dualenc evaluate --codecs=truncate:%d` measures what it'
      ' costs.',
      path, dim, known, dim,
  )
