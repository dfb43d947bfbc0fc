"""Datasets as seqio's tasks, and seqio's tasks as datasets.

The one module that imports seqio, and with it TensorFlow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import hashlib
import importlib
import os
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from dualenc_jax.data.cache import Cache, prepare
from dualenc_jax.data.columns import Column, OPTIONAL, STANDARD, TEXT
from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.utils.errors import did_you_mean_or_known, UserError

# TensorFlow would reserve the memory of GPUs that JAX computes on. It refuses
# once it runs.
with contextlib.suppress(RuntimeError):
  tf.config.set_visible_devices([], 'GPU')

SeqioVocabulary = seqio.Vocabulary
_ROW = tf.TensorSpec([None], tf.int32)
_ROWS = tf.TensorSpec([None, None], tf.int32)
_STRINGS = {
    c.name: tf.TensorSpec(
        [None] * c.rank, tf.string if c.dtype == TEXT else c.dtype
    )
    for c in STANDARD
}


def seqio_vocabulary(vocabulary: Vocabulary) -> seqio.SentencePieceVocabulary:
  """The same vocabulary as seqio has it."""
  return seqio.SentencePieceVocabulary(
      str(vocabulary.file), extra_ids=vocabulary.extra_ids
  )


def register(
    name: str, make: Callable[[], Dataset], splits: Sequence[str],
    tokenizer: Tokenizer, cache_dir: str | os.PathLike,
) -> None:
  """Registers the tokens of a dataset as a task of seqio.

  Its features are int32: inputs [L], the query; targets [L], the passage;
  negatives [N, L], the hard negatives, padded with 0 and cut where seqio cuts
  targets. Shuffled, it has another order of all examples in every epoch.

  Args:
    name: of the task; one of this name is replaced.
    make: makes the dataset when it is read, until when no file need exist.
    splits: those of the dataset.
    tokenizer: its lengths are those of the tokens.
    cache_dir: where token caches of the splits are built when they are first
      read.
  """
  feature = functools.partial(
      seqio.Feature, seqio_vocabulary(tokenizer.vocabulary), dtype=tf.int32
  )

  def dataset(split: str, shuffle_files: bool, seed: int | None = None):
    cache = prepare(make(), split, tokenizer, cache_dir)
    rng = np.random.default_rng(seed) if shuffle_files else None
    return tf.data.Dataset.from_generator(
        lambda: _examples(cache, rng),
        output_signature={'inputs': _ROW, 'targets': _ROW, 'negatives': _ROWS},
    )

  features = {
      'inputs': feature(),
      'targets': feature(),
      'negatives': feature(rank=2, required=False),
  }
  if name in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove(name)
  seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(dataset, splits=splits),
      # Where seqio's own cache may be, if the user makes one.
      preprocessors=[seqio.CacheDatasetPlaceholder(), _cut],
      output_features=features,
  )


def _cut(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int] | None
) -> tf.data.Dataset:
  """Cuts hard negatives as the passages, which seqio would not do."""
  length = (sequence_length or {}).get('targets')
  return dataset.map(lambda e: e | {'negatives': e['negatives'][:, :length]})


def register_mixture(name: str, rates: Mapping[str, float]) -> None:
  """Registers a mixture of tasks by their rates, in place of its namesake."""
  if name in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.remove(name)
  seqio.MixtureRegistry.add(name, list(rates.items()))


class RegisteredTask:
  """A task of seqio's registry, with strings query and passage."""

  def __init__(self, name: str, module: str | None):
    """Finds a task, after importing the module that registers it.

    Raises:
      UserError: no such module or task exists.
    """
    if module is not None:
      try:
        importlib.import_module(module)
      except ModuleNotFoundError as error:
        raise UserError(
            f'SeqioTask.module: {module!r} cannot be imported: {error}.'
        ) from error
    try:
      self._task = seqio.get_mixture_or_task(name)
    except ValueError:
      raise UserError(
          f'seqio knows no task {name!r}.'
          f'{did_you_mean_or_known(name, sorted(seqio.TaskRegistry.names()))}'
          ' Set SeqioTask.module to the module that registers it.'
      ) from None
    if hasattr(self._task, 'tasks'):
      raise UserError(
          f'{name!r} is a mixture of seqio. Mix its tasks by data.Mixture:'
          f' {", ".join(sorted(part.name for part in self._task.tasks))}.'
      )

  @property
  def extra_columns(self) -> tuple[Column, ...]:
    return tuple(c for c in OPTIONAL if c.name in self._task.output_features)

  def splits(self) -> tuple[str, ...]:
    return tuple(self._task.splits)

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    dataset = self._task.get_dataset(
        sequence_length=None, split=split, shuffle=False, num_epochs=1
    )
    self._check_features(dataset.element_spec)
    names = (*_STRINGS, *(column.name for column in self.extra_columns))
    for row in dataset.as_numpy_iterator():
      yield {name: _to_python(row[name]) for name in names if name in row}

  def fingerprint(self, split: str) -> str:
    """Hash of the names and sizes of the source's files."""
    digest = hashlib.sha256()
    for shard in self._task.source.list_shards(split):
      size = os.path.getsize(shard) if os.path.isfile(shard) else ''
      digest.update(f'{self._task.name}\0{shard}\0{size}\0'.encode())
    return digest.hexdigest()

  def _check_features(self, spec: Mapping[str, tf.TensorSpec]) -> None:
    for name, wanted in _STRINGS.items():
      given = spec.get(name, None if name in ('query', 'passage') else wanted)
      if given is None:
        raise UserError(
            f'Task {self._task.name!r} has no feature {name!r}; expected'
            f' strings query and passage. Features: {", ".join(sorted(spec))}.'
        )
      integers = wanted.dtype.is_integer and given.dtype.is_integer
      if given.shape.rank != wanted.shape.rank or not (
          integers or given.dtype == wanted.dtype
      ):
        raise UserError(
            f'Task {self._task.name!r}, feature {name!r}: expected untokenised'
            f' {wanted.dtype.name} of rank {wanted.shape.rank}, found'
            f' {given.dtype.name} of shape {given.shape}.'
        )


def _to_python(value: Any) -> Any:
  """A text, a number or a list of texts."""
  if isinstance(value, np.ndarray):
    return [text.decode('utf-8') for text in value.tolist()]
  return value.decode('utf-8') if isinstance(value, bytes) else value.item()


def _examples(
    cache: Cache, rng: np.random.Generator | None
) -> Iterator[dict[str, np.ndarray]]:
  order = np.arange(len(cache)) if rng is None else rng.permutation(len(cache))
  length = cache.header['passage_length']
  for i in order:
    negatives = np.arange(*cache.negative_offsets[i : i + 2])
    yield {
        'inputs': cache.query_tokens.row(i).astype(np.int32),
        'targets': cache.passage_tokens.row(i).astype(np.int32),
        'negatives': cache.negative_tokens.padded(negatives, length),
    }


class PairConverter(seqio.FeatureConverter):
  """From features inputs, targets and negatives to what both towers take.

  Features of an example, padded with 0:

    query_tokens    int32 [length of inputs]
    query_ids       uint32 [2], a fingerprint of these tokens
    passage_tokens  int32 [1 + K, length of targets]: targets, then the first K
                    of negatives, rows of 0 where there are fewer
    passage_ids     uint32 [1 + K, 2], 0 for rows of 0

  Attributes:
    num_negatives: K; with 0 no feature negatives is needed.
  """

  TASK_FEATURES = {
      'inputs': seqio.FeatureConverter.FeatureSpec(tf.int32),
      'targets': seqio.FeatureConverter.FeatureSpec(tf.int32),
  }
  MODEL_FEATURES = {
      'query_tokens': seqio.FeatureConverter.FeatureSpec(tf.int32),
      'query_ids': seqio.FeatureConverter.FeatureSpec(tf.uint32),
      'passage_tokens': seqio.FeatureConverter.FeatureSpec(tf.int32, 2, 1),
      'passage_ids': seqio.FeatureConverter.FeatureSpec(tf.uint32, 2, 1),
  }
  PACKING_FEATURE_DTYPES: dict[str, Any] = {}

  def __init__(self, pack: bool = False, num_negatives: int = 0, **kwargs):
    if pack:
      raise UserError(
          'Pairs cannot be packed by seqio. Set DatasetConfig.pack = False.'
      )
    self.num_negatives = num_negatives
    super().__init__(pack=pack, **kwargs)

  def get_model_feature_lengths(
      self, task_feature_lengths: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Lengths of the features of an example."""
    return {
        'query_tokens': task_feature_lengths['inputs'],
        'query_ids': 2,
        'passage_tokens': task_feature_lengths['targets'],
        'passage_ids': 2,
    }

  def _convert_features(
      self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    if self.num_negatives and 'negatives' not in ds.element_spec:
      raise UserError(
          'The task has no feature negatives, int32 [N, L]. Set num_negatives'
          ' to 0.'
      )

    def convert(example):
      query = _pad(example['inputs'][None], 1, task_feature_lengths['inputs'])
      length = task_feature_lengths['targets']
      passages = _pad(example['targets'][None], 1, length)
      if self.num_negatives:
        negatives = _pad(example['negatives'], self.num_negatives, length)
        passages = tf.concat([passages, negatives], axis=0)
      return {
          'query_tokens': query[0],
          'query_ids': _fingerprints(query)[0],
          'passage_tokens': passages,
          'passage_ids': _fingerprints(passages),
      }

    return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _pad(rows: tf.Tensor, count: int, length: int) -> tf.Tensor:
  """Cuts or pads int32 [n, l] to [count, length]."""
  rows = rows[:count, :length]
  missing = [count, length] - tf.shape(rows)
  rows = tf.pad(rows, tf.stack([tf.zeros_like(missing), missing], axis=1))
  return tf.ensure_shape(rows, [count, length])


def _fingerprints(rows: tf.Tensor) -> tf.Tensor:
  """64-bit fingerprints of rows of one length, uint32 [n, 2]."""
  count = rows.shape[0]
  data = tf.reshape(tf.bitcast(rows, tf.uint8), [count, -1])
  words = tf.reshape(tf.fingerprint(data), [count, 2, 4])
  there = tf.reduce_any(rows != 0, axis=1, keepdims=True)
  return tf.bitcast(words, tf.uint32) * tf.cast(there, tf.uint32)
