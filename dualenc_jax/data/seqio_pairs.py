"""Pairs of token rows as seqio's own users have them: inputs, targets.

Imports seqio, and with it TensorFlow.
"""

from collections.abc import Iterator, Mapping
import functools
import os

import numpy as np
import seqio
import tensorflow as tf

from dualenc_jax.data.cache import Cache, prepare
from dualenc_jax.data.task import Task
from dualenc_jax.errors import UserError
from dualenc_jax.text.tokenizer import Tokenizer
from dualenc_jax.text.vocabulary import Vocabulary

SeqioVocabulary = seqio.Vocabulary
_ROW = tf.TensorSpec([None], tf.int32)
_ROWS = tf.TensorSpec([None, None], tf.int32)


def seqio_vocabulary(vocabulary: Vocabulary) -> seqio.SentencePieceVocabulary:
  """The same vocabulary as seqio has it."""
  return seqio.SentencePieceVocabulary(
      str(vocabulary.file), extra_ids=vocabulary.extra_ids
  )


def register(
    name: str, task: Task, tokenizer: Tokenizer, cache_dir: str | os.PathLike
) -> None:
  """Registers the tokens of one of our tasks as a task of seqio.

  Its features are int32: inputs [L], the query; targets [L], the passage;
  negatives [N, L], the hard negatives, padded with 0. Shuffled, it has another
  order of all examples in every epoch.

  Args:
    name: for seqio; a task that has it is replaced.
    task: any but a mixture.
    tokenizer: of its texts.
    cache_dir: folder of token caches; those of the task's splits are built
      there when they are first read.

  Raises:
    UserError: the task is a mixture.
  """
  if len(task.parts()) > 1:
    raise UserError(
        f'The task {task.name!r} is a mixture; expected a task with texts.'
        ' Register a mixture of tokenised tasks with seqio, and give its name.'
    )
  feature = functools.partial(
      seqio.Feature, seqio_vocabulary(tokenizer.vocabulary), dtype=tf.int32
  )

  def dataset(split: str, shuffle_files: bool, seed: int | None = None):
    cache = prepare(task, split, tokenizer, cache_dir)
    rng = np.random.default_rng(seed) if shuffle_files else None
    return tf.data.Dataset.from_generator(
        lambda: _examples(cache, rng),
        output_signature={'inputs': _ROW, 'targets': _ROW, 'negatives': _ROWS},
    )

  if name in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove(name)
  seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(dataset, splits=task.splits()),
      preprocessors=[],
      output_features={
          'inputs': feature(),
          'targets': feature(),
          'negatives': feature(rank=2, required=False),
      },
  )


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

  Of an example, padded with 0:

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
  PACKING_FEATURE_DTYPES = {}

  def __init__(self, pack: bool = False, num_negatives: int = 0, **kwargs):
    if pack:
      raise UserError(
          'Pairs cannot be packed by seqio, whose rows are one example to the'
          ' model. Set DatasetConfig.pack = False.'
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
          f'The task has no feature negatives, int32 [N, L], to take'
          f' {self.num_negatives} hard negatives from. Features:'
          f' {", ".join(sorted(ds.element_spec))}. Set num_negatives to 0.'
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
