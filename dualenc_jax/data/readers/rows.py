"""Rows of source files: parsed and checked; bad rows stop or are counted."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import dataclasses
import io
import logging
import math
import pathlib
import re
import tokenize
from typing import Any, TypeVar

from dualenc_jax.data.readers import files
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError

S = TypeVar('S')
T = TypeVar('T')
SHOWN = 3
_LIST = re.compile(r'''\[\s*(["'].*["']\s*,?\s*)?\]''', re.DOTALL)


class BadRow(Exception):
  """Why a row cannot be an example; without its file and line."""


@dataclasses.dataclass
class Occurrences:
  """How often something was found, and the first few places, 'file:line'."""

  count: int = 0
  places: list[str] = dataclasses.field(default_factory=list)

  def add(self, place: str, count: int = 1) -> None:
    self.count += count
    if len(self.places) < SHOWN:
      self.places.append(place)


class BadRows(dict[str, Occurrences]):
  """Bad rows by reason; those beyond `REASONS` reasons are `OTHERS`."""

  REASONS = 20
  OTHERS = 'other reasons'

  def add(self, reason: str, place: str, count: int = 1) -> None:
    # A reason may quote the row: there may be as many as rows.
    if len(self) >= self.REASONS and reason not in self:
      reason = self.OTHERS
    self.setdefault(reason, Occurrences()).add(place, count)


_COLLECTED: contextvars.ContextVar[BadRows | None] = contextvars.ContextVar(
    'bad rows collected', default=None
)

# The flag of the command that skips bad rows of the files it reads.
OF_TASKS = '--gin.STRICT=False'
_SKIPPED_BY: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    'flag that skips bad rows', default=OF_TASKS
)


@contextlib.contextmanager
def skipped_by(flag: str | None) -> Iterator[None]:
  """Errors about rows name this flag, or none, in place of that of tasks."""
  token = _SKIPPED_BY.set(flag)
  try:
    yield
  finally:
    _SKIPPED_BY.reset(token)


@contextlib.contextmanager
def collecting() -> Iterator[BadRows]:
  """Readers skip bad rows, if strict too; yields where these count."""
  bad = BadRows()
  token = _COLLECTED.set(bad)
  try:
    yield bad
  finally:
    _COLLECTED.reset(token)


class Faults:
  """The faults of a source: the first is an error, or all are skipped.

  Within `collecting` all are skipped and counted there. Otherwise they are
  counted here, to be logged by `warn`.

  Attributes:
    stops: whether the first fault raises an error.
    bad: the faults that were skipped, by reason.
  """

  def __init__(self, strict: bool, things: str = 'rows'):
    """`things` is what messages call that which is skipped."""
    collected = _COLLECTED.get()
    self._things, self._logs = things, collected is None
    self.stops = strict and self._logs
    self.bad = BadRows() if collected is None else collected

  def add(
      self, reason: str, place: str, error: str = '', count: int = 1
  ) -> None:
    """Counts what is wrong at one place, or raises UserError.

    `reason` says it in few words, `error` in full, with what was expected.
    """
    if self.stops:
      flag = _SKIPPED_BY.get()
      skip = f', or skip such {self._things} by {flag}' if flag else ''
      raise UserError(
          f'{place}: {error or reason}. Mend the file{skip}.'
      ) from None
    self.bad.add(reason, place, count)

  def warn(self, place: Any, total: int | None = None) -> None:
    """Logs the counts, of a total if it is known."""
    if self._logs and self.bad:
      of = '' if total is None else f' of {total}'
      count = sum(found.count for found in self.bad.values())
      logging.getLogger(__name__).warning(
          '%s: skipped %d %s%s: %s', place, count, self._things, of, self
      )

  def __str__(self) -> str:
    ordered = sorted(self.bad.items(), key=lambda pair: -pair[1].count)
    return ', '.join(f'{found.count} {reason}' for reason, found in ordered)


def parse_lines(
    path: pathlib.Path, parse: Callable[[bytes], T], strict: bool = True
) -> Iterator[tuple[int, T]]:
  """`parse_rows` of the lines of a plain or .gz file that are not blank."""
  return parse_rows(path, files.lines(path), parse, strict)


def parse_rows(
    path: pathlib.Path,
    numbered: Iterable[tuple[int, S]],
    parse: Callable[[S], T],
    strict: bool = True,
) -> Iterator[tuple[int, T]]:
  """Yields (number, parse(raw)) of the good ones of a file's numbered rows.

  Args:
    path: the file, for messages.
    numbered: (line or row number, raw row).
    parse: makes a row of a raw one; raises BadRow.
    strict: whether the first bad row is an error, a UserError; else bad rows
      are skipped and the log says at the end how many, by reason. It is an
      error if all are bad.
  """
  good, bad, faults = 0, 0, Faults(strict, 'bad rows')
  for number, raw in numbered:
    try:
      row = parse(raw)
    except BadRow as reason:
      bad += 1
      faults.add(str(reason), f'{path}:{number}')
      continue
    good += 1
    yield number, row
  if bad and not good:
    raise UserError(f'{path} has no good row, {bad} bad: {faults}.')
  faults.warn(path, bad + good)


def decode(line: bytes) -> str:
  """UTF-8; raises BadRow."""
  try:
    return line.decode('utf-8')
  except UnicodeDecodeError:
    raise BadRow(files.NOT_UTF8) from None


def json_object(line: bytes) -> dict[str, Any]:
  """A JSON object; raises BadRow."""
  try:
    return as_object(json_file.loads(decode(line)))
  except UserError:
    raise BadRow('values within values, too deep to be read') from None
  except json_file.RepeatedKey as e:
    raise BadRow(str(e)) from None
  except ValueError:  # Also a number of 5,000 digits.
    raise BadRow('not JSON') from None


def as_object(row: Any) -> dict[str, Any]:
  """A value of JSON that is an object; raises BadRow."""
  if not isinstance(row, dict):
    raise BadRow(f'not a JSON object but {json_file.kind_name(type(row))}')
  return row


def tsv_cells(line: bytes, columns: Sequence[str]) -> list[str]:
  """Tab-separated cells as they are, no quotes or escapes; raises BadRow."""
  return named_cells(decode(line).split('\t'), columns)


def named_cells(cells: list[str], columns: Sequence[str]) -> list[str]:
  """The cells of a line; raises BadRow unless there is one a column."""
  if len(cells) != len(columns):
    raise BadRow(
        f'{len(cells)} columns, expected {len(columns)} ({", ".join(columns)})'
    )
  return cells


def text(row: Mapping[str, Any], name: str, empty: bool = False) -> str:
  """A string of a row, not only whitespace unless `empty`; raises BadRow."""
  if name not in row:
    raise BadRow(f'column {name!r} is missing')
  check_text(name, row[name], empty)
  return row[name]


def title(row: Mapping[str, Any]) -> str:
  """The title of a row, '' where there is none; raises BadRow."""
  return text({'title': row.get('title') or ''}, 'title', empty=True)


def titled(title: str, text: str) -> str:
  """A passage with its title in front, as in BEIR's own models."""
  return f'{title} {text}'.strip()


def check_text(name: str, value: Any, empty: bool = False) -> None:
  """Raises BadRow unless `value` is a string with something in it."""
  if not isinstance(value, str):
    kind = json_file.kind_name(type(value))
    raise BadRow(f'{name!r} holds {kind}, not a string')
  if not empty and not value.strip():
    raise BadRow(f'{name!r} is empty')
  try:
    value.encode('utf-8')
  except UnicodeEncodeError:  # JSON can spell half of a surrogate pair.
    raise BadRow(f'{name!r} is not valid Unicode') from None


def number(name: str, value: Any, least: float = -math.inf) -> float:
  """A finite number of the column `name`, or its text; raises BadRow."""
  found = math.nan if isinstance(value, bool) else untrusted.parse_number(value)
  if not (math.isfinite(found) and found >= least):
    wanted = 'finite number' if least < 0 else f'number, {least:g} or more'
    raise BadRow(f'{name!r} holds {value!r}; expected a {wanted}')
  return found


def identifier(row: Mapping[str, Any], name: str | None) -> str:
  """A string or integer as a string, '' where there is none; raises BadRow."""
  return '' if name is None else as_identifier(name, row.get(name))


def as_identifier(name: str, value: Any) -> str:
  """`identifier` of a value of the column `name`."""
  value = '' if value is None else value
  if isinstance(value, bool) or not isinstance(value, (str, int)):
    raise BadRow(f'{name!r} is neither a string nor an integer')
  check_text(name, str(value), empty=True)
  return str(value)


def first(row: Mapping[str, Any], names: Sequence[str]) -> str:
  """The first of these names that a row has; raises BadRow."""
  for name in names:
    if name in row:
      return name
  raise BadRow(f'there is no {one_of(names)}')


def one_of(names: Sequence[str]) -> str:
  """'a, b or c'."""
  return f'{", ".join(names[:-1])} or {names[-1]}'


def as_list(row: Mapping[str, Any], name: str) -> list[Any]:
  """A cell that holds one value or a list of them, as a list."""
  value = row[name]
  return value if isinstance(value, list) else [value]


def texts(row: Mapping[str, Any], name: str) -> list[str]:
  """The texts of a cell that holds one or a list of them; raises BadRow."""
  found = as_list(row, name)
  for value in found:
    check_text(name, value)
  return found


def parallel(
    row: Mapping[str, Any], name: str | None, count: int
) -> list[str]:
  """The `count` ids or names of a cell that goes with texts, '' for none."""
  if name is None or row.get(name) is None:
    return [''] * count
  return [as_identifier(name, v) for v in _as_many(row, name, count, 'values')]


def numbers(row: Mapping[str, Any], name: str, count: int) -> list[float]:
  """The `count` numbers of a cell that goes with texts; raises BadRow."""
  if row.get(name) is None:
    raise BadRow(f'{name!r} is missing; expected a score of each text')
  return [number(name, v) for v in _as_many(row, name, count, 'scores')]


def _as_many(
    row: Mapping[str, Any], name: str, count: int, what: str
) -> list[Any]:
  values = as_list(row, name)
  if len(values) != count:
    raise BadRow(f'{name!r} holds {len(values)} {what} for {count} texts')
  return values


def is_list(text: str) -> bool:
  """Whether a text is a list of texts in quotes, or of none, by its looks."""
  text = text.strip()
  return text[:1] == '[' and bool(_LIST.fullmatch(text))


def parse_list(text: str) -> Any:
  """The value that a text is in JSON, else as a literal of Python; raises
  ValueError for neither, and for two texts without a comma between them."""
  try:
    return json_file.loads(text)
  except (UserError, ValueError):
    pass
  try:
    value = ast.literal_eval(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = [t.type for t in tokens if t.type != tokenize.NL]
  except (SyntaxError, RecursionError, MemoryError) as error:
    raise ValueError(str(error)) from None
  # Python makes one text of two.
  if (tokenize.STRING,) * 2 in zip(kinds, kinds[1:]):
    raise ValueError('no comma between two texts')
  return value


def read_list(name: str, value: Any) -> Any:
  """The list that a value of a column is as text, else the value itself.

  Raises BadRow for a list of texts that is of neither JSON nor Python, as
  NumPy prints them.
  """
  if not isinstance(value, str) or value.strip()[:1] != '[':
    return value
  try:
    found = parse_list(value.strip())
  except ValueError as error:
    if is_list(value):
      raise BadRow(
          f'{name!r} is not a list of JSON or Python ({error}); write it as'
          ' JSON, ["a", "b"]'
      ) from None
    return value
  return found if isinstance(found, list) else value
