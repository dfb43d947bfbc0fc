"""What a reader offers, and what its examples are made of."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from dualenc_jax.data import columns


class Reader(Protocol):
  """Reads the files of a benchmark; what a file of tasks/ is made of.

  A reader is a dataclass of options. `root` and `data_root` are folders; a
  class attribute `FILES` names options that are paths of files, and
  `NOT_OF_CORPUS` those that the split 'corpus' does not depend on: see
  `Task.identity`.

  Splits are 'train', 'validation', 'test', whichever there are, and 'corpus'
  where the passages to rank are more than those of the pairs.
  """

  def splits(self) -> tuple[str, ...]:
    """The splits that there are."""

  def check_split(self, split: str) -> None:
    """Raises UserError where a split or its files are missing."""

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields what `example` makes, always in the same order."""

  def fingerprint(self, split: str) -> str:
    """Hash of the source of a split; equal for equal data."""

  def corpus_split(self, split: str) -> str | None:
    """The split whose passages the queries of `split` are ranked over.

    None if these are the passages of the split itself.
    """

  # It may also have `answer_text(passage, name) -> str`: the part of a passage
  # in which answers are looked for, if that is not all of it.


def example(
    query: str = '', passage: str = '', **values: Any
) -> dict[str, Any]:
  """A row of a split, of one of three kinds.

  A pair has a query and a passage; to train on, the passage is relevant. A row
  of a corpus has no query. A query without a known passage has no passage.

  Args:
    query: its text.
    passage: its text, with whatever title belongs to it.
    **values: any other of `columns.STANDARD` and `columns.OPTIONAL`:
      negatives: hard negatives, passages.
      query_id: '' for a hash of the text.
      passage_id: '' for a hash of the text.
      name: what a search hit displays.
      location: where the row is from: 'file:line'.
      relevance: grade of the passage for the query, as in qrels.
      answers: strings of which a passage that answers the query has one.
      weights: weight of the pair in the loss, 1 unless given.
  """
  return columns.example({'query': query, 'passage': passage, **values})


def registrar(reader: Callable[..., Reader]) -> Callable[..., Any]:
  """The function `register(name, **options)` of a file of tasks/.

  It adds a seqio task of this name, whose reader is made with these options.
  """

  def register(name: str, **options):
    from dualenc_jax.data import seqio_source  # Imports TensorFlow.

    return seqio_source.add_task(name, reader(**options))

  return register
