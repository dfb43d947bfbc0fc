"""Readers as seqio tasks. Imports seqio, and with it TensorFlow."""

from typing import Any

import seqio
import tensorflow as tf

from dualenc_jax.errors import UserError

_TEXTS = ('query', 'passage', 'query_id', 'passage_id', 'name', 'location')


class ReaderSource(seqio.FunctionDataSource):
  """The examples of a reader, as a dataset of strings.

  Attributes:
    reader: an object with `splits()`, `check_split(split)`, `examples(split)`
      and `fingerprint(split)`.
    error: what the reader last raised; TensorFlow passes on only its text.
  """

  def __init__(self, reader: Any):
    self.reader = reader
    self.error: UserError | None = None
    super().__init__(self._dataset, splits=reader.splits())

  def fingerprint(self, split: str) -> str:
    """The reader's own."""
    return self.reader.fingerprint(split)

  def _dataset(self, split: str, shuffle_files: bool) -> tf.data.Dataset:
    del shuffle_files  # A reader has one order.
    signature = {name: tf.TensorSpec([], tf.string) for name in _TEXTS}
    signature['negatives'] = tf.TensorSpec([None], tf.string)
    return tf.data.Dataset.from_generator(
        lambda: self._examples(split), output_signature=signature
    )

  def _examples(self, split: str):
    self.error = None
    try:
      yield from self.reader.examples(split)
    except UserError as error:
      # Raised through TensorFlow it would print two tracebacks and lose its
      # type; `Task.examples` raises it when the dataset ends.
      self.error = error


def add_task(name: str, reader: Any) -> seqio.Task:
  """Registers a reader as a seqio task of untokenised strings.

  Features: query, passage, query_id, passage_id, name, location (scalars) and
  negatives (one axis, of any length).
  """
  return seqio.TaskRegistry.add(
      name,
      source=ReaderSource(reader),
      preprocessors=[],
      output_features={
          **{text: _string_feature(0) for text in _TEXTS},
          'negatives': _string_feature(1),
      },
  )


def _string_feature(rank: int) -> seqio.Feature:
  return seqio.Feature(
      seqio.PassThroughVocabulary(size=1),
      add_eos=False,
      dtype=tf.string,
      rank=rank,
  )
