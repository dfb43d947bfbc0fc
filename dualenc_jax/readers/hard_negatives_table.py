"""Hard negatives by query id, on disk."""

from collections.abc import Iterable
import json

from dualenc_jax.readers.hard_negatives_forms import Negative
from dualenc_jax.readers.text_table import TextTable


class NegativeTable:
  """Hard negatives of millions of queries, 16 bytes of RAM each query.

  A context manager, as the table below it.
  """

  def __init__(self, rows: Iterable[tuple[str, list[Negative]]], what: str):
    """Reads all (query id, hard negatives); `what` they are, for errors."""
    self._table = TextTable(
        ((query_id, json.dumps(negatives)) for query_id, negatives in rows),
        what,
    )

  def __len__(self) -> int:
    return len(self._table)

  def get(self, query_id: str) -> list[Negative]:
    """The query's hard negatives, none if it is not in the table."""
    found = self._table.get(query_id)
    return [Negative(*entry) for entry in json.loads(found)] if found else []

  def __enter__(self) -> 'NegativeTable':
    return self

  def __exit__(self, *error) -> None:
    self._table.__exit__(*error)
