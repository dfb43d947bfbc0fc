"""Rows of text files, parsed and checked; bad ones stop, or are counted."""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
import json
import logging
import math
import pathlib
from typing import Any, TypeVar

from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows, files
from dualenc_jax.suggest import did_you_mean

S = TypeVar('S')
T = TypeVar('T')
# What sets every reader to leave out and count what is wrong.
LENIENT = '--gin.STRICT=False (strict)'


class BadRow(Exception):
  """Why a row cannot be an example; without its file and line."""


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
  """Raises UserError unless `value` is one of `known`."""
  if value not in known:
    raise UserError(
        f'{name} is {value!r}; expected {" or ".join(map(repr, known))}.'
        + did_you_mean(str(value), known)
    )


def check_strict(value: bool) -> None:
  """Raises UserError unless it is True or False."""
  if not isinstance(value, bool):
    raise UserError(f'STRICT (strict) is {value!r}; expected True or False.')


def parsed(
    path: pathlib.Path, parse: Callable[[bytes], T], strict: bool = True
) -> Iterator[tuple[int, T]]:
  """Yields (line number, parse(line)) of the good lines of a file.

  Args:
    path: plain or .gz.
    parse: of a line; raises BadRow.
    strict: whether the first bad row is an error; else bad rows are left out
      and the log says at the end how many, by reason.

  Raises:
    UserError: a bad row, bad rows only, or a damaged gzip file.
  """
  return checked(path, files.lines(path), parse, strict)


def checked(
    path: pathlib.Path,
    numbered: Iterable[tuple[int, S]],
    parse: Callable[[S], T],
    strict: bool = True,
    flag: str = LENIENT,
) -> Iterator[tuple[int, T]]:
  """Yields (number, parse(raw)) of the good ones of a file's numbered rows.

  Args:
    path: the file, for messages.
    numbered: (line or row number, raw row).
    parse: of a raw row; raises BadRow.
    strict: as of `parsed`; of no effect within `bad_rows.collecting`.
    flag: what unsets it, for the message.

  Raises:
    UserError: a bad row, or bad rows only.
  """
  good, bad = 0, collections.Counter()
  collected = bad_rows.collected()
  for number, raw in numbered:
    try:
      row = parse(raw)
    except BadRow as reason:
      if collected is not None:
        collected.add(str(reason), f'{path}:{number}')
      elif strict:
        raise UserError(
            f'{path}:{number}: {reason}. Mend the row, or leave out such rows'
            f' with {flag}.'
        ) from None
      bad[str(reason)] += 1
      continue
    good += 1
    yield number, row
  if bad:
    counts = ', '.join(f'{count} {text}' for text, count in bad.most_common())
    if not good:
      raise UserError(f'{path} has no good row, {bad.total()} bad: {counts}.')
    if collected is not None:
      return
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
  except (ValueError, RecursionError):  # Also a number of 5,000 digits.
    raise BadRow('not JSON') from None
  if not isinstance(row, dict):
    what = 'an array' if isinstance(row, list) else 'no object'
    raise BadRow(f'not a JSON object but {what}; expected an object a line')
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


def weight(row: dict[str, Any], name: str) -> float:
  """A finite number from 0 on, or its text; raises BadRow."""
  value = row.get(name)
  try:
    number = math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError, OverflowError):
    number = math.nan
  if not 0 <= number < math.inf:
    raise BadRow(f'{name!r} holds {value!r}; expected a number, 0 or more')
  return number


def identifier(row: dict[str, Any], name: str) -> str:
  """A string or integer as a string, '' where there is none; raises BadRow."""
  return as_identifier(name, row.get(name))


def as_identifier(name: str, value: Any) -> str:
  """`identifier` of a value of the column `name`."""
  value = '' if value is None else value
  if isinstance(value, bool) or not isinstance(value, (str, int)):
    raise BadRow(f'{name!r} is neither a string nor an integer')
  check_text(name, str(value), empty=True)
  return str(value)
