"""`Experiment`, all parts of a run, and its plan before the first step.

It is the root of the object tree that gin builds.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import logging
import math
import re
import shlex
from typing import Any
import uuid

import jax

from dualenc_jax import data
from dualenc_jax.checkpoints.adapters import GROUP
from dualenc_jax.checkpoints.vocabulary import check_lengths
from dualenc_jax.data import Cache, columns, dataset
from dualenc_jax.objectives import Batches, Objective
from dualenc_jax.objectives.objective import check
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.partitioning import leaf_paths, Partitioner
from dualenc_jax.retrieval.compression import model_codec
from dualenc_jax.training import (
  initial_checkpoint as initial_lib,
  step as step_lib,
)
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.lora import Lora
from dualenc_jax.training.reporting import TRACKERS
from dualenc_jax.training.step import Optimizer, Plan, TrainState
from dualenc_jax.training.stopping import UntilAligned
from dualenc_jax.utils.errors import check_whole, expect, UserError
from dualenc_jax.utils.files import default_cache_dir
from dualenc_jax.utils.tensor_files.tensors import layer_names
from dualenc_jax.utils.untrusted import escape

# Fields of objectives that `describe_settings` leaves out: `facts` describe the
# model, and the others do not change the numbers.
_NO_SETTINGS = 'model', 'layout', 'micro_batch_size'
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run: an objective, its data, its length and its folder.

  Attributes:
    model_dir: folder of checkpoints, events, config and results.
    steps: training steps.
    batch_size: B, examples in the global batch.
    seed: seed of parameters, dropout and the order of examples.
    checkpoint_every: steps between checkpoints; the last step has one, too.
    keep_checkpoints: how many of the newest to keep.
    keep_best: a metric of the evaluations on the validation split, 'nDCG@10';
      the trained checkpoint with its best value (the lowest of a perplexity,
      else the highest) is kept, too, and is then the model of `model_dir`. None
      takes the newest.
    patience: evaluations in a row without a new best after which the run ends.
    until: a criterion that ends the run before its last step, or None.
    eval_every: steps between evaluations on the validation split, 0 for none.
    watch_tasks: further tasks to evaluate with these, on the split that each is
      measured on, to see what is forgotten.
    eval_batch_size: most rows that a device encodes at once in evaluation and
      search, rounded down to a power of two; long texts have fewer.
    initial_checkpoint: source of the parameters of a run without a checkpoint
      of its own; also a path alone. None starts from scratch.
    tracker: 'wandb' or 'trackio', which get the metrics, too.
    passage_tokenizer: tokenizer of splits whose passages alone are used, where
      `tokenizer` has another prompt of queries; None for `tokenizer`.
    lora: adapters to train in place of the kernels of `initial_checkpoint`;
      None, or those without a rank, train the whole model.
  """

  model_dir: str
  objective: Objective
  task: data.Dataset | data.Mixture
  tokenizer: data.Tokenizer
  optimizer: Optimizer
  partitioner: Partitioner
  steps: int
  batch_size: int
  seed: int = 0
  checkpoint_every: int = 1000
  keep_checkpoints: int = 3
  keep_best: str | None = None
  patience: int | None = None
  until: UntilAligned | None = None
  eval_every: int = 1000
  watch_tasks: Sequence[data.Dataset] = ()
  eval_batch_size: int = 256
  initial_checkpoint: initial_lib.InitialCheckpoint | str | None = None
  cache_dir: str | None = None
  tracker: str | None = None
  passage_tokenizer: data.Tokenizer | None = None
  lora: Lora | None = None

  def __post_init__(self):
    dataset.check_dataset('Experiment.task', self.task)
    check('Experiment.objective', self.objective)
    for name in ('eval_every', 'seed'):
      check_whole(f'Experiment.{name}', getattr(self, name), 0)
    for name in (
        'steps', 'batch_size', 'checkpoint_every', 'keep_checkpoints',
        'eval_batch_size',
    ):
      check_whole(f'Experiment.{name}', getattr(self, name), 1)
    if self.patience is not None:
      check_whole('Experiment.patience (PATIENCE)', self.patience, 1)
      expect(
          self.keep_best is not None, 'KEEP_BEST', None,
          'a metric for PATIENCE to wait for, such as nDCG@10',
      )
    for name in ('keep_best', 'until'):
      if getattr(self, name) is not None and not self.eval_every:
        raise UserError(
            f'{name.upper()} is given, but EVAL_EVERY is 0: expected'
            ' evaluations on the validation split.'
        )
    expect(
        isinstance(self.until, UntilAligned | None), 'UNTIL', self.until,
        '@training.UntilAligned(), in gin, or None',
    )
    if self.tracker is not None:
      expect(
          self.tracker in TRACKERS, 'Experiment.tracker (TRACKER)',
          self.tracker, 'wandb or trackio',
      )
    for task in self.watch_tasks:
      dataset.check_dataset('Experiment.watch_tasks', task)
    self.objective.check_vocabulary(self.tokenizer.vocabulary)

  def cache(self, split: str) -> Cache:
    """Returns the token cache of a split, which is built if it is missing."""
    return self._prepare(self.task.for_split(split), split)

  def passage_cache(self, split: str) -> Cache:
    """Returns the token cache of a split whose passages alone are used."""
    tokenizer = self.passage_tokenizer or self.tokenizer
    return dataclasses.replace(self, tokenizer=tokenizer).cache(split)

  @functools.cached_property
  def caches(self) -> list[Cache]:
    """Token caches of the training pairs, one for each part of a mixture."""
    return [self._prepare(task, 'train') for task, _ in self.task.parts()]

  @functools.cached_property
  def corpora(self) -> list[Cache]:
    """Token caches of the corpora of training queries, if they have any."""
    splits = [(t, t.corpus_split('train')) for t, _ in self.task.parts()]
    wanted = [(task, split) for task, split in splits if split is not None]
    return [self._prepare(task.for_split(s), s) for task, s in wanted]

  @property
  def rates(self) -> list[float] | None:
    """The share of each cache in a mixture; None for one cache."""
    rates = [rate for _, rate in self.task.parts()]
    if len(rates) == 1:
      return None
    sizes = [len(cache) for cache in self.caches]
    shares = [size / sum(sizes) for size in sizes]
    return [x if rate is None else rate for x, rate in zip(shares, rates)]

  @functools.cached_property
  def batches(self) -> Batches:
    """The training batches, from caches that are built if missing."""
    return self.objective.batches(self)

  @property
  def extra_columns(self) -> tuple[columns.Column, ...]:
    """Columns of a training batch beyond those of every dataset."""
    extra = columns.collect_extra(task for task, _ in self.task.parts())
    return tuple(column for column in extra if column.per)

  @property
  def adapters(self) -> Lora | None:
    """The adapters of the run; None if it trains the whole model."""
    given = self.lora is not None and self.lora.rank is not None
    return self.lora if given else None

  def _prepare(self, task: data.Dataset, split: str) -> Cache:
    folder = self.cache_dir or default_cache_dir() / 'tokens'
    tokenizer = self.tokenizer.prompted(self.task.prompt_of(task))
    return data.prepare(task, split, tokenizer, folder)


def make_plan(experiment: Experiment) -> Plan:
  """Checks the model against the mesh and traces its parameters."""
  objective, partitioner = experiment.objective, experiment.partitioner
  objective.check_mesh(partitioner)
  return step_lib.plan(
      objective, experiment.optimizer, partitioner, experiment.seed,
      objective.extra_state(experiment), experiment.adapters,
  )


def make_start(plan: Plan, experiment: Experiment) -> initial_lib.Start | None:
  """Plans the start of a run, or its base; None is from scratch."""
  source = experiment.initial_checkpoint
  if source is None or getattr(source, 'path', source) is None:
    if experiment.objective.needs_start:
      raise UserError(
          f'{type(experiment.objective).__name__} learns from a trained passage'
          ' tower, but INITIAL_CHECKPOINT_PATH is None. Expected the model_dir,'
          ' or any checkpoint, of the teacher.'
      )
    if plan.lora is not None:
      raise UserError(
          f'LORA_RANK is {plan.lora.rank}, but INITIAL_CHECKPOINT_PATH is None:'
          ' expected the checkpoint whose parameters stay beside the adapters.'
          ' Give it, or leave LORA_RANK out.'
      )
    _warn_of_random(plan, experiment, {})
    return None
  if plan.lora is not None and getattr(source, 'query_path', None):
    raise UserError(
        'LORA_RANK and QUERY_CHECKPOINT_PATH are given, but adapters have one'
        ' base. Leave one of them out.'
    )
  params = plan.abstract.params
  if plan.lora is not None:
    heads = {name: tree for name, tree in params.items() if name != GROUP}
    params = plan.lora.combine(plan.abstract.base, heads)
  start = initial_lib.plan_start(
      source, experiment.objective.facts, experiment.tokenizer.vocabulary,
      params,
  )
  check_lengths(start.weights, experiment.tokenizer)
  if plan.lora is None:
    _warn_of_random(plan, experiment, start.sources)
  elif fresh := _find_fresh(plan.abstract.base, start.sources):
    raise UserError(
        f'{", ".join(fresh)}: random, and never trained: LORA_RANK trains'
        ' adapters alone, and these are not from the checkpoint. Give one that'
        ' has them.'
    )
  prompts = dict(start.weights.usage.prompts)
  embeds = experiment.objective.outputs == 'embeddings'
  if prompts and embeds and not experiment.tokenizer.prompts:
    text = json.dumps(prompts, ensure_ascii=False)
    _LOG.warning(
        '%s has prompts, which this run does not take over. To keep them, give'
        ' --gin.PROMPTS=%s',
        start.weights.path, escape(shlex.quote(text)),
    )
  return start


def _warn_of_random(
    plan: Plan, experiment: Experiment, sources: Mapping[str, str | None]
) -> None:
  """Warns of parameters that are frozen, but not from a checkpoint.

  `sources` are those of a `Start`. Parameters of a codec are never random.
  """
  params, objective = plan.abstract.params, experiment.objective
  frozen = experiment.optimizer.frozen_paths(
      leaf_paths(params), objective.frozen
  )
  fresh = [
      path
      for path in _find_fresh(params, sources)
      if path in frozen and not path.startswith(f'{model_codec.GROUP}/')
  ]
  if fresh:
    _LOG.warning(
        'WARNING: %s: random, and never trained: frozen (FREEZE), but not from'
        ' a checkpoint. Give INITIAL_CHECKPOINT_PATH, a model that has them, or'
        ' leave them out of FREEZE.',
        ', '.join(fresh),
    )


def _find_fresh(params: Any, sources: Mapping[str, str | None]) -> list[str]:
  """Returns paths of parameters that no checkpoint has, or not all layers."""
  return [
      path
      for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params))
      if None in map(sources.get, layer_names(path, leaf.shape))
  ]


def describe(experiment: Experiment, plan: Plan) -> Iterator[str]:
  """Yields lines on devices, parameters, steps and the objective."""
  mesh = experiment.partitioner.mesh
  devices = mesh.devices.flatten()
  yield (
      f'Devices: {devices.size} {devices[0].device_kind} on'
      f' {jax.process_count()} host(s), mesh data {mesh.shape["data"]} x model'
      f' {mesh.shape["model"]}.'
  )
  params = jax.tree.leaves(plan.all_params(plan.abstract))
  count = sum(math.prod(leaf.shape) for leaf in params)
  yield f'Parameters: {count:,} in {len(params)} arrays.'
  if plan.lora is not None:
    yield plan.lora.describe(plan.abstract)
  rate = experiment.optimizer.describe(experiment.steps)
  yield f'Steps: {experiment.steps}, {rate}.'
  yield from experiment.objective.describe(experiment)


def restore_or_init(
    plan: Plan, checkpoints: Checkpoints, start: initial_lib.Start | None
) -> tuple[TrainState, dict[str, Any]]:
  """Returns the first state and its `meta`.

  The state is the newest readable checkpoint of this run, else the parameters
  of `start`, else random ones. The base of adapters is always that of `start`;
  its facts are in `meta`.
  """
  restored = checkpoints.restore(plan.abstract)
  if restored is not None:
    state, meta = restored
    _LOG.info('Resuming from step %d.', meta['step'])
  else:
    state, meta = plan.init(), {'step': 0, 'run_id': uuid.uuid4().hex}
    if start is not None:
      state = initial_lib.load_start(start, state)
  if plan.lora is not None:
    assert start is not None
    base, meta[GROUP] = initial_lib.load_base(
        start, plan.abstract.base, plan.lora, checkpoints.folder.parent,
        meta.get(GROUP),
    )
    state = state._replace(base=base)
  return state, meta


def describe_data(experiment: Experiment) -> dict[str, Any]:
  """Returns what the batch of a step depends on, besides the step."""
  headers = [cache.header for cache in experiment.caches]
  facts = {}
  for name in ('task', 'source'):
    values = [header[name] for header in headers]
    facts[name] = values if len(values) > 1 else values[0]
  facts |= {
      'vocabulary': headers[0]['vocabulary'],
      'examples': sum(len(cache) for cache in experiment.caches),
      'query_length': experiment.tokenizer.query_length,
      'passage_length': experiment.tokenizer.passage_length,
      **experiment.tokenizer.prefixes,
      'global_batch': experiment.batch_size,
      'seed': experiment.seed,
  }
  # Batches of an objective of one's own may have none.
  facts |= getattr(experiment.batches, 'facts', {})
  # Tasks of a mixture may have prefixes of their own.
  prefixes = [header.get('query_prefix', '') for header in headers]
  if {*prefixes} != {experiment.tokenizer.query_prefix}:
    facts['query_prefixes'] = prefixes
  if experiment.rates is not None:
    facts['rates'] = [round(rate, 9) for rate in experiment.rates]
  if hosts.is_joined():
    # Hosts of other shapes of batches would wait for each other for ever.
    all_facts = {**facts, 'shapes of batches': repr(experiment.batches.shapes)}
    hosts.agree(
        'training data',
        '\n'.join(f'{a}: {json.dumps(b)}' for a, b in all_facts.items()),
        'Expected the same files on all hosts.',
    )
  return facts


def check_same_data(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
  """Raises UserError unless the training data is that of the checkpoint."""
  named = {**dict.fromkeys(saved.keys() & {'query_prefixes'}), **now}
  if changes := _changes(saved, named):
    raise UserError(
        f'The training data of this run has changed: {changes}. Restore it, use'
        ' another MODEL_DIR, or give --allow_data_change to resume with it.'
    )


def describe_settings(experiment: Experiment) -> dict[str, Any]:
  """Returns what a run that is built in Python learns, as JSON."""
  objective: Any = experiment.objective
  optimizer = experiment.optimizer
  settings = {'objective': type(objective).__name__, 'steps': experiment.steps}
  if dataclasses.is_dataclass(objective):
    settings |= {
        field.name: getattr(objective, field.name)
        for field in dataclasses.fields(objective)
        if field.name not in _NO_SETTINGS
    }
  settings |= objective.facts | {
      'rate': optimizer.describe(experiment.steps),
      'clip_norm': optimizer.clip_norm,
      'freeze': optimizer.freeze,
      'multipliers': optimizer.multipliers,
      **({'lora': experiment.adapters} if experiment.adapters else {}),
  }
  # The addresses of functions are others in each process.
  return {
      name: re.sub(r' at 0x[0-9a-f]+', '', str(value))
      for name, value in settings.items()
  }


def check_same_settings(
    saved: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  """Raises UserError unless settings, where known, are the checkpoint's."""
  if saved and now and (changes := _changes(saved, now)):
    raise UserError(
        f'The settings of this run have changed: {changes}. Use another'
        ' model_dir, or call train(..., allow_other_config=True) to resume with'
        ' the new values.'
    )


def _changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
  return '; '.join(
      f'{name}: {saved.get(name)} -> {value}'
      for name, value in now.items()
      if saved.get(name) != value
  )
