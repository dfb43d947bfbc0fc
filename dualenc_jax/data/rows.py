"""Rows of text files, parsed and checked; bad ones stop, or are counted."""

import collections
from collections.abc import Callable, Iterator, Sequence
import json
import logging
import pathlib
from typing import Any, TypeVar

from dualenc_jax.data import files
from dualenc_jax.errors import UserError
from dualenc_jax.suggest import did_you_mean

T = TypeVar('T')


class BadRow(Exception):
  """Why a row cannot be an example; without its file and line."""


def check_policy(name: str, value: str) -> None:
  """Raises UserError unless `value` is 'error' or 'skip'."""
  if value not in ('error', 'skip'):
    raise UserError(
        f"{name} is {value!r}; expected 'error' or 'skip'."
        + did_you_mean(value, ('error', 'skip'))
    )


def parsed(
    path: pathlib.Path, parse: Callable[[bytes], T], on_bad_row: str = 'error'
) -> Iterator[tuple[int, T]]:
  """Yields (line number, parse(line)) of the good lines of a file.

  Args:
    path: plain or .gz.
    parse: of a line; raises BadRow.
    on_bad_row: 'error' raises at the first bad row, 'skip' leaves bad rows out
      and logs at the end how many, by reason.

  Raises:
    UserError: a bad row, or a damaged gzip file.
  """
  good, bad = 0, collections.Counter()
  for number, line in files.lines(path):
    try:
      row = parse(line)
    except BadRow as reason:
      if on_bad_row == 'error':
        raise UserError(
            f'{path}:{number}: {reason}. Mend the row, or leave out such rows'
            ' with --gin.ON_BAD_ROW=skip (on_bad_row).'
        ) from None
      bad[str(reason)] += 1
      continue
    good += 1
    yield number, row
  if bad:
    counts = ', '.join(f'{count} {text}' for text, count in bad.most_common())
    logging.getLogger(__name__).warning(
        '%s: skipped %d bad rows of %d: %s',
        path,
        bad.total(),
        bad.total() + good,
        counts,
    )


def decode(line: bytes) -> str:
  """UTF-8; raises BadRow."""
  try:
    return line.decode('utf-8')
  except UnicodeDecodeError:
    raise BadRow('not UTF-8') from None


def json_object(line: bytes) -> dict[str, Any]:
  """A JSON object; raises BadRow."""
  try:
    row = json.loads(decode(line))
  except (json.JSONDecodeError, RecursionError):
    raise BadRow('not JSON') from None
  if not isinstance(row, dict):
    raise BadRow('not a JSON object')
  return row


def tsv_cells(line: bytes, columns: int | Sequence[str]) -> list[str]:
  """Tab-separated cells as they are, no quotes or escapes; raises BadRow.

  Args:
    line: of the file.
    columns: how many are expected, or their names.
  """
  cells = decode(line).split('\t')
  expected = columns if isinstance(columns, int) else len(columns)
  if len(cells) != expected:
    names = '' if isinstance(columns, int) else f' ({", ".join(columns)})'
    raise BadRow(f'{len(cells)} columns, expected {expected}{names}')
  return cells


def text(row: dict[str, Any], name: str, empty: bool = False) -> str:
  """A string of a row, not only whitespace unless `empty`; raises BadRow."""
  if name not in row:
    raise BadRow(f'column {name!r} is missing')
  check_text(name, row[name], empty)
  return row[name]


def check_text(name: str, value: Any, empty: bool = False) -> None:
  """Raises BadRow unless `value` is a string with something in it."""
  if not isinstance(value, str):
    raise BadRow(f'{name!r} holds {type(value).__name__}, not a string')
  if not empty and not value.strip():
    raise BadRow(f'{name!r} is empty')
  try:
    value.encode('utf-8')
  except UnicodeEncodeError:  # JSON can spell half of a surrogate pair.
    raise BadRow(f'{name!r} is not valid Unicode') from None


def identifier(row: dict[str, Any], name: str) -> str:
  """A string or integer as a string, '' where there is none; raises BadRow."""
  value = row.get(name)
  value = '' if value is None else value
  if isinstance(value, bool) or not isinstance(value, (str, int)):
    raise BadRow(f'{name!r} is neither a string nor an integer')
  check_text(name, str(value), empty=True)
  return str(value)
