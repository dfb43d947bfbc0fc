"""The initial parameters of a run, from another checkpoint of any form.

A light query tower starts from a pre-trained model of its own (Leonhardt et
al., 2022), or from layers of the passage tower (Wang and Lyu, 2023).
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import logging
import pathlib
from typing import Any

import jax

from dualenc_jax import models
from dualenc_jax.checkpoints import (
  adapters,
  assignment,
  checkpoint_reader,
  formats,
  loading,
)
from dualenc_jax.checkpoints.assignment import Rule
from dualenc_jax.checkpoints.vocabulary import check_same_vocabulary
from dualenc_jax.checkpoints.weights import (
  count_reasons,
  encoder_settings,
  Weights,
)
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import GemmaEncoder
from dualenc_jax.parallel import partitioning
from dualenc_jax.training.step import TrainState
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import layer_names, Tensor

# Put before the names of a query tower's own checkpoint.
_QUERY = 'query_checkpoint/'
_TOWER = '(token_embedder|encoder)/(.*)'
_SPREAD, _SCRATCH = 'spread', 'scratch'
_LOG = logging.getLogger(__name__)
Sources = Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class InitialCheckpoint:
  """A checkpoint to start from, and rules of what goes where.

  Attributes:
    path: a `model_dir`, a T5X checkpoint, a Hugging Face or
      sentence-transformers folder, or hf://org/name, known by its content.
      None starts from scratch.
    rules: as in `assign`: pairs of a regular expression over parameters of this
      model and the name in the checkpoint, or None to start fresh.
    drop: regular expressions over names in the checkpoint to leave out.
    query_layers: the layers of the passage tower from which a query tower with
      an encoder of its own starts, as in `choose_layers`, or 'scratch'; `rules`
      win. None takes the tensors by their names.
    query_path: another checkpoint, from whose query tower this one takes its
      token embedder and encoder, as DAFT does from a pre-trained one.
  """

  path: str | None = None
  rules: Sequence[Rule] = ()
  drop: Sequence[str] = ()
  query_layers: str | Sequence[int] | None = None
  query_path: str | None = None


@dataclasses.dataclass(frozen=True)
class Start:
  """The start of a run, checked, before any tensor is read.

  Attributes:
    weights: those of the checkpoint, or of two.
    sources: the name in the checkpoint, or None, of every parameter, one a
      layer.
    path: the checkpoint as the run names it.
  """

  weights: Weights
  sources: Sources
  path: str = ''

  def __str__(self) -> str:
    """One line: how much is taken, fresh and left out."""
    fresh = [name for name, source in self.sources.items() if source is None]
    reasons = list(self.weights.left_out.values())
    reasons += ['the loss'] * len(
        self.weights.loss.keys() - set(self.sources.values())
    )
    return (
        f'Starting from {self.weights.path} ({self.weights.kind}):'
        f' {len(self.sources) - len(fresh)} tensors'
        + (f'; fresh: {", ".join(fresh)}' if fresh else '')
        + (f'; left out: {count_reasons(reasons)}' if reasons else '')
        + '.'
    )


def plan_start(
    initial: InitialCheckpoint | str, facts: Mapping[str, Any],
    vocabulary: Vocabulary, abstract_params: Any,
) -> Start:
  """Assigns tensors of the checkpoint to the parameters.

  Args:
    initial: the checkpoint, or its path alone.
    facts: those of the model, as in `Objective.facts` and `models.describe`.
    vocabulary: the run's; that of the checkpoint, if known, must be this one.
    abstract_params: the parameters, by their shapes.

  Raises:
    UserError: as in `assign` and the readers.
  """
  if isinstance(initial, str):
    initial = InitialCheckpoint(initial)
  path, query_path = map(hub.model, (initial.path, initial.query_path))
  weights = formats.read(path)
  if 'decoder' in facts and (decoder := weights.read_decoder()):
    left_out = {
        name: reason
        for name, reason in weights.left_out.items()
        if reason not in ('decoder', 'head')
    }
    weights = dataclasses.replace(
        weights, tensors={**weights.tensors, **decoder}, left_out=left_out
    )
  check_same_vocabulary(weights, vocabulary)
  shapes: dict[str, Any] = {}
  leaves = jax.tree.leaves(abstract_params)
  for name, leaf in zip(partitioning.leaf_paths(abstract_params), leaves):
    shapes |= layer_names(name, leaf.shape)
  if not initial.rules and 'encoder' in facts:
    # The names of T5 1.0 and 1.1 differ, too.
    mine, theirs = facts['encoder']['activations'], weights.encoder.activations
    if len(mine) != len(theirs):
      raise _other_activations(weights, 'encoder', theirs, 'encoder', mine)
  rules, drop = [*initial.rules], [*initial.drop]
  if query_path is None:
    if initial.query_layers is not None:
      more = _layer_rules(initial.query_layers, facts, weights)
      rules, drop = rules + more[0], drop + more[1]
    sources = assignment.assign(shapes, weights, rules, drop)
    check_activations(weights, facts, sources)
    return Start(weights, sources, str(initial.path))
  query = formats.read(query_path)
  check_same_vocabulary(query, vocabulary)
  more = _query_rules(facts, weights, query)
  towers = _combine(weights, query)
  sources = assignment.assign(shapes, towers, rules + more[0], drop + more[1])
  of_query = {
      name: source.removeprefix(_QUERY)
      for name, source in sources.items()
      if source is not None and source.startswith(_QUERY)
  }
  others = {n: s for n, s in sources.items() if n not in of_query}
  check_activations(weights, facts, others)
  check_activations(query, facts, of_query)
  return Start(towers, sources)


def load_start(start: Start, state: TrainState) -> TrainState:
  """Replaces the parameters of a fresh state by those of a checkpoint.

  Tensor by tensor: neither the host nor a device has two models at once. The
  replaced arrays of `state`, on the mesh, are deleted.

  Raises:
    UserError: a tensor cannot be read.
  """
  tensors = {**start.weights.tensors, **start.weights.loss}
  names = partitioning.leaf_paths(state.params)
  leaves, treedef = jax.tree.flatten(state.params)
  for i, (name, leaf) in enumerate(zip(names, leaves)):
    # Adapters have no source.
    parts = layer_names(name, leaf.shape)
    sources = [start.sources.get(part) for part in parts]
    leaves[i] = _load_array(leaf, name, sources, tensors)
  _LOG.info('%s', start)
  return state._replace(params=jax.tree.unflatten(treedef, leaves))


def load_base(
    start: Start, abstract: Any, lora: Any, model_dir: pathlib.Path,
    known: Mapping[str, Any] | None = None,
) -> tuple[Any, dict[str, Any]]:
  """Loads the base of adapters, tensor by tensor.

  Args:
    start: the checkpoint.
    abstract: the base, with shardings.
    lora: the run's `Lora`.
    model_dir: that of the run, for messages.
    known: the facts of the run's own checkpoint, whose base must be this one.

  Returns:
    The base on the mesh, and its facts, `adapters.FACTS`.

  Raises:
    UserError: a tensor cannot be read, or is not that of `known`.
  """
  weights, found = start.weights, {}
  tensors = {**weights.tensors, **weights.loss}

  def place(path, leaf):
    layers = []
    for name in layer_names(partitioning.path_string(path), leaf.shape):
      source = start.sources[name]
      assert source is not None
      found[name] = {'source': source}
      see = functools.partial(found[name].__setitem__, 'sha256')
      if known is not None:
        facts = known['tensors'].get(name, {'source': source, 'sha256': ''})
        see = adapters.checker(model_dir, start.path, **facts)
      layers.append(adapters.watch(tensors[source], see))
    return loading.place_array(leaf.shape, leaf.sharding, layers)

  base = jax.tree_util.tree_map_with_path(place, abstract)
  is_run = weights.kind == checkpoint_reader.KIND
  path = start.path
  if '://' not in path:
    path = str(pathlib.Path(path).expanduser().absolute())
  facts = {
      'rank': lora.rank,
      'factor': lora.factor,
      'base': path,
      'step': weights.step if is_run else None,
      'tensors': found if known is None else known['tensors'],
  }
  return base, facts


def _load_array(
    leaf: jax.Array, name: str, sources: Sequence[Any],
    tensors: Mapping[str, Tensor],
) -> jax.Array:
  """The tensors on the mesh in the place of an array, which is deleted."""
  if all(source is None for source in sources):
    return leaf
  if None in sources:
    raise UserError(
        f'{assignment.RULES}: some layers of {name} would start fresh, but it'
        ' is one array of all layers. Set models.T5Encoder.scan_layers=False.'
    )
  shape, sharding = leaf.shape, leaf.sharding
  leaf.delete()
  layers = [tensors[source] for source in sources]
  return loading.place_array(shape, sharding, layers)


def check_activations(
    weights: Weights, facts: Mapping[str, Any], sources: Sources
) -> None:
  """Raises UserError unless encoders have the settings that no tensor shows.

  They are the activations of feed-forward blocks and, of Gemma, windows, bases
  of positions and others. A checkpoint without activations, such as T5X's, is
  taken to have this model's.
  """
  for name, source in sources.items():
    tower, block, _ = name.partition('/mlp/')
    if not block or source is None:
      continue
    tower, there = tower.split('/')[0], source.split('/')[0]
    _check_gemma(weights, there, facts[tower], tower)
    mine = tuple(facts[tower]['activations'])
    # A decoder has those of its encoder.
    theirs = tuple(getattr(weights, there, weights.encoder).activations)
    known = weights.names_activations or len(mine) != len(theirs)
    if mine != theirs and known:
      raise _other_activations(weights, there, theirs, tower, mine)


def _check_gemma(
    weights: Weights, there: str, facts: Mapping[str, Any], tower: str
) -> None:
  encoder = getattr(weights, there, None)
  if not isinstance(encoder, GemmaEncoder):
    return
  mine = encoder_settings(models.rebuild(facts, tower))
  for name, value in encoder_settings(encoder).items():
    # A tower may have some of the layers.
    if name not in ('num_layers', 'last_is_global') and mine.get(name) != value:
      raise UserError(
          f'{weights.path} ({weights.kind}) has {name} {value!r} in its'
          f' {there}; {tower}.{name} of this model is {mine.get(name)!r}. Give'
          f' its file of models/gemma/, or --gin.models.GemmaEncoder.{name}='
          f'{value!r}.'
      )


def _other_activations(weights, there, theirs, tower, mine) -> UserError:
  return UserError(
      f'{weights.path} ({weights.kind}) has feed-forward blocks'
      f' {tuple(theirs)} in its {there}; {tower}.activations of this model is'
      f' {tuple(mine)}. Give the model file of its version: those in'
      ' models/t5_1_1/, or in models/t5_1_0/ for GTR and Sentence-T5.'
  )


def choose_layers(
    which: str | Sequence[int], wanted: int, there: int
) -> list[int]:
  """Returns the layers of a deeper tower from which a light one starts.

  Args:
    which: 'spread', evenly from the first to the last (of one: the last); or
      numbers of layers, from 0.
    wanted: layers of the light tower.
    there: layers of the deeper tower.

  Raises:
    UserError: the deeper tower has too few layers, or lacks a number.
  """
  if wanted > there:
    raise UserError(
        f'QUERY_LAYERS is {wanted}, but the checkpoint has only {there} layers'
        ' to start from. Give at most that many.'
    )
  if which == _SPREAD:
    if wanted == 1:
      return [there - 1]
    return [round(i * (there - 1) / (wanted - 1)) for i in range(wanted)]
  if len(which) != wanted or not set(which) <= {*range(there)}:
    raise UserError(
        f'QUERY_LAYERS_FROM is {which!r}; expected {_SPREAD}, {_SCRATCH} or'
        f' {wanted} numbers from 0 to {there - 1}, one for each of'
        ' QUERY_LAYERS.'
    )
  return [int(i) for i in which]


def _layer_rules(
    which: str | Sequence[int], facts: Mapping[str, Any], weights: Weights
) -> tuple[list[Rule], list[str]]:
  """Rules, and names to drop, that start a query tower from a passage tower."""
  _check_two_towers('QUERY_LAYERS_FROM', facts)
  drop = _query_tower(weights)
  if which == _SCRATCH:
    return [(_TOWER, None)], drop
  tower = weights.passage_encoder or weights.encoder
  prefix = 'passage_' if weights.passage_encoder is not None else ''
  chosen = choose_layers(
      which, facts['encoder']['num_layers'], tower.num_layers
  )
  rules: list[Rule] = [
      (rf'encoder/layers_{i}/(.*)', rf'{prefix}encoder/layers_{j}/\1')
      for i, j in enumerate(chosen)
  ]
  if prefix:
    rules.append((_TOWER, r'passage_\1/\2'))
  return rules, drop


def _query_rules(
    facts: Mapping[str, Any], weights: Weights, query: Weights
) -> tuple[list[Rule], list[str]]:
  """Rules, and names to drop, over the checkpoint that `_combine` makes."""
  _check_two_towers('QUERY_CHECKPOINT_PATH', facts)
  wanted, there = facts['encoder']['num_layers'], query.encoder.num_layers
  if wanted != there:
    raise UserError(
        f'QUERY_LAYERS is {wanted}, and {query.path} has {there} layers; set'
        f' QUERY_LAYERS={there}.'
    )
  parts = {name.split('/')[0] for name in query.tensors}
  unused = sorted(parts - {'token_embedder', 'encoder'})
  drop = _query_tower(weights) + [f'{_QUERY}{part}/.*' for part in unused]
  return [(_TOWER, rf'{_QUERY}\1/\2')], drop


def _combine(weights: Weights, query: Weights) -> Weights:
  """Two checkpoints as one: tensors of `query` get a prefix."""
  renamed = {
      f'{_QUERY}{name}': tensor for name, tensor in query.tensors.items()
  }
  return dataclasses.replace(
      weights,
      path=f'{weights.path} and {query.path}',
      tensors={**weights.tensors, **renamed},
  )


def _check_two_towers(what: str, facts: Mapping[str, Any]) -> None:
  if not facts.get('passage_encoder'):
    raise UserError(
        f'{what} is given, but the towers share their encoder. Give'
        ' --gin_file=architectures/light_query.gin after the model.'
    )


def _query_tower(weights: Weights) -> list[str]:
  """Expressions of the names of a checkpoint's own query tower."""
  return [] if weights.passage_encoder is None else [_TOWER]
