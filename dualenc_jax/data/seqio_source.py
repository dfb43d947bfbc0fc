"""Readers as seqio tasks. Imports seqio, and with it TensorFlow."""

import seqio
import tensorflow as tf

from dualenc_jax.data.columns import STANDARD, TEXT
from dualenc_jax.data.reader import Reader
from dualenc_jax.errors import UserError

# Rank and dtype of what an example has, see `reader.example`.
_FEATURES = {
    c.name: (c.rank, tf.string if c.dtype == TEXT else tf.as_dtype(c.dtype))
    for c in STANDARD
}


class ReaderSource(seqio.FunctionDataSource):
  """The examples of a reader, as a dataset of strings.

  Attributes:
    reader: what to read.
    error: what the reader last raised; TensorFlow passes on only its text.
  """

  def __init__(self, reader: Reader):
    self.reader = reader
    self.error: UserError | None = None
    super().__init__(self._dataset, splits=reader.splits())

  def fingerprint(self, split: str) -> str:
    """The reader's own."""
    return self.reader.fingerprint(split)

  def _dataset(self, split: str, shuffle_files: bool) -> tf.data.Dataset:
    del shuffle_files  # A reader has one order.
    signature = {
        name: tf.TensorSpec([None] * rank, dtype)
        for name, (rank, dtype) in _FEATURES.items()
    }
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


def add_task(name: str, reader: Reader) -> seqio.Task:
  """Registers a reader as a seqio task of untokenised strings.

  Features are those of `reader.example`: strings query, passage, query_id,
  passage_id, name and location, int32 relevance, and negatives and answers,
  strings along one axis of any length.
  """
  return seqio.TaskRegistry.add(
      name,
      source=ReaderSource(reader),
      preprocessors=[],
      output_features={
          feature: seqio.Feature(
              seqio.PassThroughVocabulary(size=1),
              add_eos=False,
              dtype=dtype,
              rank=rank,
          )
          for feature, (rank, dtype) in _FEATURES.items()
      },
  )
