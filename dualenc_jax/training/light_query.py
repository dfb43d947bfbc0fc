"""The layers from which a light query tower starts.

Leonhardt et al. (2022) start it from a pre-trained model of its own, Wang and
Lyu (2023) from layers of the passage tower.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from dualenc_jax.checkpoints.assignment import Rule
from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.utils.errors import UserError

# In front of the names of a query tower's own checkpoint.
_OWN = 'query_checkpoint/'
NAMED = ('first', 'last', 'spread', 'ends')
SCRATCH = 'scratch'


def layers(which: str | Sequence[int], wanted: int, there: int) -> list[int]:
  """The layers, of a deeper tower, from which one of fewer layers starts.

  `which` is 'first' or 'last', in a row; 'spread', evenly from the first to the
  last (of one: the last); 'ends', the first half of the tower from the first
  and the rest from the last; or numbers of layers, from 0.

  Raises:
    UserError: the deeper tower has too few layers, or lacks a number.
  """
  if not isinstance(which, str):
    odd = [i for i in which if i not in range(there)]
    if odd or len(which) != wanted:
      raise UserError(
          f'QUERY_LAYERS_FROM is {tuple(which)}; expected {wanted} numbers from'
          f' 0 to {there - 1}, one for each of QUERY_LAYERS.'
      )
    return list(which)
  if wanted > there:
    raise UserError(
        f'QUERY_LAYERS is {wanted}, but the checkpoint has only {there} layers'
        ' to start from. Give at most that many.'
    )
  if which == 'first':
    return list(range(wanted))
  if which == 'last':
    return list(range(there - wanted, there))
  if which == 'ends':
    first = wanted - wanted // 2
    return [*range(first), *range(there - wanted + first, there)]
  if which == 'spread':
    if wanted == 1:
      return [there - 1]
    return [round(i * (there - 1) / (wanted - 1)) for i in range(wanted)]
  raise UserError(
      f'QUERY_LAYERS_FROM is {which!r}; expected one of {", ".join(NAMED)},'
      f' {SCRATCH}, or numbers of layers.'
  )


def rules(
    which: str | Sequence[int], facts: Mapping[str, Any], weights: Weights
) -> tuple[list[Rule], list[str]]:
  """Rules and names to drop that start the query tower from a passage tower.

  `which` is as in `layers`, or 'scratch' for a tower of random numbers.

  Raises:
    UserError: the model has no query tower of its own, or as in `layers`.
  """
  _check_apart('QUERY_LAYERS_FROM', facts)
  drop = _left(weights)
  if which == SCRATCH:
    return [('(token_embedder|encoder)/.*', None)], drop
  tower = weights.passage_encoder or weights.encoder
  own = 'passage_' if weights.passage_encoder is not None else ''
  chosen = layers(which, facts['encoder']['num_layers'], tower.num_layers)
  found: list[Rule] = [
      (rf'encoder/layers_{i}/(.*)', rf'{own}encoder/layers_{j}/\1')
      for i, j in enumerate(chosen)
  ]
  if own:
    found.append((r'(token_embedder|encoder)/(.*)', r'passage_\1/\2'))
  return found, drop


def rules_of_its_own(
    facts: Mapping[str, Any], weights: Weights, query: Weights
) -> tuple[list[Rule], list[str]]:
  """Rules and names to drop, over the checkpoint that `beside` makes.

  Raises:
    UserError: the model has no query tower of its own, or one of another depth.
  """
  _check_apart('QUERY_CHECKPOINT_PATH', facts)
  wanted, there = facts['encoder']['num_layers'], query.encoder.num_layers
  if wanted != there:
    raise UserError(
        f'QUERY_LAYERS is {wanted}, and {query.path} has {there} layers; set'
        f' QUERY_LAYERS={there}.'
    )
  parts = {name.split('/')[0] for name in query.tensors}
  unused = sorted(parts - {'token_embedder', 'encoder'})
  drop = _left(weights) + [f'{_OWN}{part}/.*' for part in unused]
  return [('((?:token_embedder|encoder)/.*)', rf'{_OWN}\1')], drop


def beside(weights: Weights, query: Weights) -> Weights:
  """Two checkpoints as one: tensors of `query` have names of their own."""
  own = {f'{_OWN}{name}': tensor for name, tensor in query.tensors.items()}
  return dataclasses.replace(
      weights,
      path=f'{weights.path} and {query.path}',
      tensors={**weights.tensors, **own},
  )


def apart(
    sources: Mapping[str, str | None],
) -> tuple[dict[str, str | None], dict[str, str | None]]:
  """Sources in the query tower's checkpoint, and the others."""
  own: dict[str, str | None] = {
      name: source.removeprefix(_OWN)
      for name, source in sources.items()
      if source is not None and source.startswith(_OWN)
  }
  return own, {n: s for n, s in sources.items() if n not in own}


def _check_apart(what: str, facts: Mapping[str, Any]) -> None:
  if not facts.get('passage_encoder'):
    raise UserError(
        f'{what} is given, but the towers share their encoder. Give'
        ' --gin_file=architectures/light_query.gin after the model.'
    )


def _left(weights: Weights) -> list[str]:
  """The names to leave out of a checkpoint: those of its query tower."""
  is_one = weights.passage_encoder is None
  return [] if is_one else ['(token_embedder|encoder)/.*']
