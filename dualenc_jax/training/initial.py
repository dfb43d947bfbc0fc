"""The initial parameters of a run, from another checkpoint of any form."""

from collections.abc import Mapping, Sequence
import dataclasses
import logging
from typing import Any

import jax
import numpy as np

from dualenc_jax.checkpoints import (
  assignment,
  formats,
  loading,
  model_dirs,
)
from dualenc_jax.checkpoints.vocabulary import check_same_vocabulary
from dualenc_jax.checkpoints.weights import count_reasons, Weights
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.parallel import partitioning
from dualenc_jax.training import light_query
from dualenc_jax.training.step import TrainState
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.stacked_layers import layer_names
from dualenc_jax.utils.tensor_files.tensors import Tensor

_LOG = logging.getLogger(__name__)


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
    keep_optimizer: take Adafactor's or Adam's statistics, too; the schedule
      starts anew.
    query_layers: the layers of the passage tower from which a query tower with
      an encoder of its own starts, as in `light_query.layers`, but for those
      with `rules`. None takes the tensors by their names.
    query_path: another checkpoint, from whose query tower this one takes its
      token embedder and encoder, as DAFT does from a pre-trained one.
  """

  path: str | None = None
  rules: Sequence[assignment.Rule] = ()
  drop: Sequence[str] = ()
  keep_optimizer: bool = False
  query_layers: str | Sequence[int] | None = None
  query_path: str | None = None


@dataclasses.dataclass(frozen=True)
class Start:
  """The start of a run, checked, before any tensor is read.

  `sources` has the name in the checkpoint, or None, of every parameter, one a
  layer.
  """

  weights: Weights
  sources: Mapping[str, str | None]
  keep_optimizer: bool

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

  `facts` of the model are those of `Objective.facts` and `models.describe`; the
  vocabulary of the checkpoint, if known, must be this one.

  Raises:
    UserError: as in `assign` and the readers.
  """
  if isinstance(initial, str):
    initial = InitialCheckpoint(initial)
  path, query_path = map(hub.model, (initial.path, initial.query_path))
  if 'decoder' in facts:
    weights, decoder = formats.read_with_decoder(path)
    tensors = {**weights.tensors, **decoder}
    weights = dataclasses.replace(weights, tensors=tensors)
  else:
    weights = formats.read(path)
  check_same_vocabulary(weights, vocabulary)
  query = None
  if query_path is not None:
    query = formats.read(query_path)
    check_same_vocabulary(query, vocabulary)
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
  more: tuple[list[Any], list[Any]] = [], []
  if query is not None:
    more = light_query.rules_of_its_own(facts, weights, query)
  elif initial.query_layers is not None:
    more = light_query.rules(initial.query_layers, facts, weights)
  towers = weights if query is None else light_query.beside(weights, query)
  sources = assignment.assign(shapes, towers, rules + more[0], drop + more[1])
  of_query, others = light_query.apart(sources)
  check_activations(weights, facts, others)
  if query is not None:
    check_activations(query, facts, of_query)
  weights = towers
  return Start(weights, sources, initial.keep_optimizer)


def start_from(start: Start, state: TrainState) -> TrainState:
  """Replaces the parameters of a fresh state by those of a checkpoint.

  Tensor by tensor: neither the host nor a device has two models at once. The
  replaced arrays of `state`, on the mesh, are deleted.

  Raises:
    UserError: a tensor cannot be read, or is of another optimizer.
  """
  weights, sources = start.weights, start.sources
  opt_state = state.opt_state
  if start.keep_optimizer:
    opt_state = _with_statistics(opt_state, weights, sources)
  tensors = {**weights.tensors, **weights.loss}
  names = partitioning.leaf_paths(state.params)
  leaves, treedef = jax.tree.flatten(state.params)
  for i, (name, leaf) in enumerate(zip(names, leaves)):
    parts = [sources[part] for part in layer_names(name, leaf.shape)]
    leaves[i] = _place(leaf, name, parts, tensors)
  _LOG.info('%s', start)
  params = jax.tree.unflatten(treedef, leaves)
  return state._replace(params=params, opt_state=opt_state)


def check_activations(
    weights: Weights, facts: Mapping[str, Any],
    sources: Mapping[str, str | None],
) -> None:
  """Raises UserError unless feed-forward blocks have the same activations.

  A checkpoint without them, such as T5X's, is taken to have this model's.
  """
  for name, source in sources.items():
    tower, block, _ = name.partition('/mlp/')
    if not block or source is None:
      continue
    tower, there = tower.split('/')[0], source.split('/')[0]
    mine = tuple(facts[tower]['activations'])
    # A decoder has those of its encoder.
    theirs = tuple(getattr(weights, there, weights.encoder).activations)
    known = weights.names_activations or len(mine) != len(theirs)
    if mine != theirs and known:
      raise _other_activations(weights, there, theirs, tower, mine)


def _other_activations(weights, there, theirs, tower, mine) -> UserError:
  return UserError(
      f'{weights.path} ({weights.kind}) has feed-forward blocks'
      f' {tuple(theirs)} in its {there}; {tower}.activations of this model is'
      f' {tuple(mine)}. Give the model file of its version: those in'
      ' models/t5_1_1/, or in models/t5_1_0/ for GTR and Sentence-T5.'
  )


def _place(
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
  stacked = '/layers/' in name
  for source in sources:
    if tensors[source].shape != (shape[1:] if stacked else shape):
      raise UserError(
          f'{tensors[source].where} has the shape {tensors[source].shape};'
          f' {name} of this run has {shape}.'
      )
  leaf.delete()
  layers = [tensors[source] for source in sources]
  return loading.place_array(shape, sharding, layers)


def _with_statistics(
    opt_state: Any, weights: Weights, sources: Mapping[str, str | None]
) -> Any:
  """The optimizer state with the checkpoint's statistics, on the same mesh."""
  if not weights.optimizer:
    raise UserError(
        f'{weights.path} ({weights.kind}) has no optimizer state to keep. Set'
        ' INITIAL_CHECKPOINT_OPTIMIZER=False.'
    )
  names = partitioning.leaf_paths(opt_state)
  leaves, treedef = jax.tree.flatten(opt_state)
  counts = set()
  for i, (name, leaf) in enumerate(zip(names, leaves)):
    found = model_dirs.STATISTIC.fullmatch(name)
    # An array of one is optax's mark for what a parameter has none of.
    if not found or leaf.shape == (1,):
      continue
    prefix, kind, parameter = found.groups()
    parts = [
        sources[part] and f'{sources[part]}/{kind}'
        for part in layer_names(parameter, leaf.shape)
    ]
    if None in parts:
      continue
    absent = [part for part in parts if part not in weights.optimizer]
    if absent:
      raise UserError(
          f'{weights.path} has no {absent[0]}: of another optimizer, or frozen.'
          ' Set INITIAL_CHECKPOINT_OPTIMIZER=False.'
      )
    leaves[i] = _place(leaf, name, parts, weights.optimizer)
    counts.add(f'{prefix}/count' if prefix else 'count')
  count = weights.step
  if 'count' in weights.optimizer:
    count = int(weights.optimizer['count'].read())
  for i, (name, leaf) in enumerate(zip(names, leaves)):
    if name in counts and count is not None:
      leaves[i] = jax.device_put(np.asarray(count, leaf.dtype), leaf.sharding)
  return jax.tree.unflatten(treedef, leaves)
