"""The root of the object tree that gin builds: everything a run is made of."""

import dataclasses
import functools

from dualenc_jax.data import (
  Cache,
  columns,
  Dataset,
  dataset,
  Mixture,
  prepare,
  Tokenizer,
)
from dualenc_jax.io.files import default_cache_dir
from dualenc_jax.objectives import Batches, Objective
from dualenc_jax.objectives.objective import check, check_whole
from dualenc_jax.training import InitialCheckpoint, Optimizer, Partitioner


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run: what is trained, on what, how long, and where it is kept.

  Attributes:
    model_dir: folder of checkpoints, events, config and results.
    objective: what is learnt, `objectives.Contrastive` or any other
      `objectives.Objective`.
    task: supplies the examples.
    tokenizer: vocabulary and lengths.
    optimizer: optax and its rules.
    partitioner: the mesh.
    steps: training steps.
    batch_size: B, examples in the global batch.
    seed: of parameters, dropout and the order of examples.
    checkpoint_every: steps between checkpoints; there is one at the end, too.
    keep_checkpoints: how many of the newest to keep.
    eval_every: steps between evaluations on the validation split, 0 for none.
    eval_queries: queries of the fixed sub-corpus that these use.
    eval_passages: its passages; all relevant ones are among them.
    eval_batch_size: most rows that a device encodes at once in evaluation and
      search, rounded down to a power of two; of long texts they are fewer.
    initial_checkpoint: what to take the parameters from when this run has no
      checkpoint of its own; also a path alone. None starts from scratch.
    cache_dir: where token caches are kept.
  """

  model_dir: str
  objective: Objective
  task: Dataset | Mixture
  tokenizer: Tokenizer
  optimizer: Optimizer
  partitioner: Partitioner
  steps: int
  batch_size: int
  seed: int = 0
  checkpoint_every: int = 1000
  keep_checkpoints: int = 3
  eval_every: int = 1000
  eval_queries: int = 1000
  eval_passages: int = 10000
  eval_batch_size: int = 256
  initial_checkpoint: InitialCheckpoint | str | None = None
  cache_dir: str | None = None

  def __post_init__(self):
    dataset.check('Experiment.task', self.task)
    check('Experiment.objective', self.objective)
    for name in ('eval_every', 'seed'):
      check_whole(f'Experiment.{name}', getattr(self, name), 0)
    for name in (
        'steps',
        'batch_size',
        'checkpoint_every',
        'keep_checkpoints',
        'eval_queries',
        'eval_passages',
        'eval_batch_size',
    ):
      check_whole(f'Experiment.{name}', getattr(self, name), 1)
    self.objective.check_vocabulary(self.tokenizer.vocabulary)

  def cache(self, split: str) -> Cache:
    """The token cache of a split of the task, built if there is none yet."""
    return self._prepare(self.task.for_split(split), split)

  @functools.cached_property
  def caches(self) -> list[Cache]:
    """Token caches of what is trained on, one for each part of a mixture."""
    return [self._prepare(task, 'train') for task, _ in self.task.parts()]

  @property
  def rates(self) -> list[float] | None:
    """Share of each cache in a mixture; None for one cache."""
    rates = [rate for _, rate in self.task.parts()]
    if len(rates) == 1:
      return None
    sizes = [len(cache) for cache in self.caches]
    return [
        size / sum(sizes) if rate is None else rate
        for size, rate in zip(sizes, rates)
    ]

  @functools.cached_property
  def batches(self) -> Batches:
    """The training batches, from caches that are built if there are none."""
    return self.objective.batches(self)

  @property
  def extra_columns(self) -> tuple[columns.Column, ...]:
    """What a training batch has beside the columns of every dataset."""
    found = columns.extra(task for task, _ in self.task.parts())
    return tuple(column for column in found if column.per)

  def _prepare(self, task: Dataset, split: str) -> Cache:
    folder = self.cache_dir or default_cache_dir() / 'tokens'
    return prepare(task, split, self.tokenizer, folder)
