"""What the examples of a dataset are made of."""

from typing import Any

from dualenc_jax.data import columns


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
