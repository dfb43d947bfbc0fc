"""The root of the object tree that gin builds: everything a run is made of."""

import dataclasses
import functools
import os
import pathlib

from dualenc_jax import losses
from dualenc_jax.data import (
  Batches,
  Cache,
  columns,
  Dataset,
  dataset,
  Layout,
  Mixture,
  Packed,
  prepare,
  Tokenizer,
)
from dualenc_jax.errors import UserError
from dualenc_jax.models import DualEncoder
from dualenc_jax.training import InitialCheckpoint, Optimizer, Partitioner

__all__ = ['Experiment', 'default_cache_dir']


def default_cache_dir() -> pathlib.Path:
  """`$DUALENC_CACHE`, or `dualenc_jax` in the user's cache folder."""
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(
      os.environ.get('DUALENC_CACHE') or pathlib.Path(base) / 'dualenc_jax'
  )


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run: what is trained, on what, how long, and where it is kept.

  Attributes:
    model_dir: folder of checkpoints, events, config and results.
    model: the dual encoder.
    loss: a loss of `dualenc_jax.losses`, or any `losses.Loss`.
    task: supplies the examples.
    tokenizer: vocabulary and lengths.
    optimizer: optax and its rules.
    partitioner: the mesh.
    steps: training steps.
    batch_size: B, pairs in the global batch.
    num_negatives: K, hard negatives taken from each example.
    micro_batch_size: pairs encoded at once; None for all of the batch.
    layout: how texts are put into rows: `data.Padded()`, `data.Grouped()` or
      `data.Packed()`.
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
    similarity: how vectors are compared, by whatever loss.
  """

  model_dir: str
  model: DualEncoder
  loss: losses.Loss
  task: Dataset | Mixture
  tokenizer: Tokenizer
  optimizer: Optimizer
  partitioner: Partitioner
  steps: int
  batch_size: int
  num_negatives: int = 0
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  seed: int = 0
  checkpoint_every: int = 1000
  keep_checkpoints: int = 3
  eval_every: int = 1000
  eval_queries: int = 1000
  eval_passages: int = 10000
  eval_batch_size: int = 256
  initial_checkpoint: InitialCheckpoint | str | None = None
  cache_dir: str | None = None
  similarity: losses.Similarity = losses.Similarity()

  def __post_init__(self):
    dataset.check('Experiment.task', self.task)
    losses.check('Experiment.loss', self.loss)
    if not isinstance(self.similarity, losses.Similarity):
      raise UserError(
          f'Experiment.similarity is {self.similarity!r}; expected a'
          ' Similarity. In gin, write @losses.Similarity().'
      )
    if isinstance(self.layout, type) or not hasattr(self.layout, 'place'):
      raise UserError(
          f'Experiment.layout is {self.layout!r}; expected a layout. In gin,'
          ' write LAYOUT = @data.Packed(), @data.Grouped() or @data.Padded().'
      )
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type == int | None and value is None:
        continue
      if field.type in (int, int | None) and type(value) is not int:
        raise UserError(
            f'Experiment.{field.name} is {value!r}; expected a whole number.'
        )
    for name in (
        'steps',
        'batch_size',
        'micro_batch_size',
        'checkpoint_every',
        'keep_checkpoints',
        'eval_queries',
        'eval_passages',
        'eval_batch_size',
    ):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise UserError(f'Experiment.{name} is {value}; expected at least 1.')
    for name in ('num_negatives', 'eval_every', 'seed'):
      if getattr(self, name) < 0:
        raise UserError(
            f'Experiment.{name} is {getattr(self, name)}; expected 0 or more.'
        )
    vocabulary = self.tokenizer.vocabulary
    for name in ('token_embedder', 'passage_token_embedder'):
      embedder = getattr(self.model, name)
      # T5 pads its table to a multiple of 128 rows, beyond 100 extra ids.
      if embedder and not 0 <= embedder.vocab_size - vocabulary.size < 256:
        raise UserError(
            f'{name} has {embedder.vocab_size} rows but the vocabulary'
            f' {vocabulary.path} has {vocabulary.size} pieces. Expected as many'
            ' rows, or up to 255 more: set VOCAB_SIZE to'
            f' {-(-vocabulary.size // 128) * 128}, or give the vocabulary of'
            ' the model.'
        )

  def cache(self, split: str) -> Cache:
    """The token cache of a split of the task, built if there is none yet."""
    return self._prepare(self.task.for_split(split), split)

  @functools.cached_property
  def batches(self) -> Batches:
    """The training batches, from caches that are built if there are none."""
    parts = self.task.parts()
    caches = [self._prepare(task, 'train') for task, _ in parts]
    sizes = [len(cache) for cache in caches]
    rates = [
        size / sum(sizes) if rate is None else rate
        for size, (_, rate) in zip(sizes, parts)
    ]
    return Batches(
        caches,
        self.batch_size,
        self.seed,
        self.tokenizer.query_length,
        self.tokenizer.passage_length,
        self.num_negatives,
        None if len(parts) == 1 else rates,
        self.layout,
        self.cells,
        self.extra_columns,
    )

  @property
  def extra_columns(self) -> tuple[columns.Column, ...]:
    """What a training batch has beside the columns of every dataset."""
    found = columns.extra(task for task, _ in self.task.parts())
    return tuple(column for column in found if column.per)

  @property
  def cells(self) -> int:
    """C of the batch: as many a micro-batch as devices on the data axis."""
    devices = self.partitioner.mesh.shape['data']
    size = self.batch_size
    return devices * (size // (self.micro_batch_size or size))

  def _prepare(self, task: Dataset, split: str) -> Cache:
    folder = self.cache_dir or default_cache_dir() / 'tokens'
    return prepare(task, split, self.tokenizer, folder)
