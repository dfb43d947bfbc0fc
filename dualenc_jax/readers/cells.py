"""Cells of a row that hold one value or a list of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualenc_jax.readers import rows
from dualenc_jax.readers.rows import BadRow


def texts(row: Mapping[str, Any], column: str) -> Sequence[str]:
  """The texts of a column that holds one or a list of them."""
  value = row[column]
  found = value if isinstance(value, list) else [value]
  for text in found:
    rows.check_text(column, text)
  return found


def titled(
    row: Mapping[str, Any], found: Sequence[str], column: str | None
) -> Sequence[str]:
  """Texts with the titles of a column in front of them."""
  if column is None:
    return found
  return [
      f'{title} {text}' if title.strip() else text
      for title, text in zip(parallel(row, column, len(found)), found)
  ]


def numbers(
    row: Mapping[str, Any], column: str, count: int
) -> Sequence[float]:
  """The `count` numbers of a column that goes with texts."""
  if row.get(column) is None:
    raise BadRow(f'{column!r} is missing; expected a score of each text')
  values = row[column] if isinstance(row[column], list) else [row[column]]
  if len(values) != count:
    raise BadRow(f'{column!r} holds {len(values)} scores for {count} texts')
  return [rows.finite(column, value) for value in values]


def parallel(
    row: Mapping[str, Any], column: str | None, count: int
) -> Sequence[str]:
  """The `count` values of a column that goes with texts, '' for none."""
  value = row.get(column)
  if value is None:
    return [''] * count
  values = value if isinstance(value, list) else [value]
  if len(values) != count:
    raise BadRow(f'{column!r} holds {len(values)} values for {count} texts')
  return [rows.as_identifier(column, value) for value in values]
