"""Cells of text files that are in quotes, or hold lists."""

import ast
from collections.abc import Iterable, Iterator
import csv
import io
import itertools
import pathlib
import re
import tokenize
from typing import Any

from dualenc_jax.data.readers import text_files
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError

# Bytes of a TSV's begin that tell whether its cells are in quotes.
_SAMPLE = 2**24
_OF_TEXTS = re.compile(r'''\[\s*(["'].*["']\s*,?\s*)?\]''', re.DOTALL)


def csv_reader(lines: Iterable[str], **options: Any) -> Any:
  """`csv.reader` of cells as long as a line may be."""
  # For the process: its own limit, 128 KiB, is less than many documents have.
  csv.field_size_limit(text_files.LONGEST_LINE)
  return csv.reader(lines, **options)


def numbered(
    path: pathlib.Path, delimiter: str | None
) -> Iterator[tuple[int, list[str] | csv.Error]]:
  """Yields (its first line's number, cells) of each row that is not blank.

  A cell may go over several lines; `""` in one is a quote. Bytes that are not
  UTF-8 are lone surrogates. A line that is not a row is the error that says
  why, and reading goes on in the next line. Without a delimiter it is the
  comma, semicolon or tab that the first line has most of. Errors are those of
  `text_files.lines`.
  """
  number = 0

  def lines() -> Iterator[str]:
    nonlocal number
    for number, line in text_files.lines(path, blank=True):
      yield line.decode('utf-8', 'surrogateescape') + '\n'

  stream = lines()
  first = next(stream, None)
  if first is None:
    return
  found = csv_reader(
      itertools.chain([first], stream),
      delimiter=delimiter or max(',;\t', key=first.count),
      strict=True,
  )
  start = 1
  while True:
    row: list[str] | csv.Error
    try:
      row = next(found)
    except StopIteration:
      return
    except csv.Error as error:
      row = error
    if row:
      yield start, row
    start = number + 1


def is_quoted(path: pathlib.Path) -> bool:
  """Whether the cells of a TSV are in quotes, not plain.

  They are where its first 16 MiB can be read so, with as many cells in every
  row, and quotes are there for a reason: a cell has a tab, a line's end or a
  doubled quote within, or all cells that are not numbers are in quotes. A plain
  file with a quote within a cell, or around one by chance, is none.
  """
  last, size, quotes = 0, 0, False
  for last, line in text_files.lines(path):
    quotes = quotes or b'"' in line
    size += len(line) + 1
    if size > _SAMPLE:
      break
  if not quotes:
    return False
  needed, width = False, 0
  for start, row in numbered(path, '\t'):
    if start > last:
      break
    if isinstance(row, csv.Error):
      return False
    width = width or len(row)
    if len(row) != width or width < 2:
      return False
    needed = needed or any({'\t', '\n', '"'} & {*cell} for cell in row)
  all_lines = text_files.lines(path)
  lines = itertools.takewhile(lambda row: row[0] <= last, all_lines)
  # A writer of quotes puts a cell that has one in quotes; csv reads it all the
  # same, so the lines are looked at. A cell may go over several.
  inside = False
  for cell in (cell for _, line in lines for cell in line.split(b'\t')):
    if needed and not inside and b'"' in cell and not cell.startswith(b'"'):
      return False
    if not needed and not (cell[:1] == cell[-1:] == b'"' or _is_number(cell)):
      return False
    inside ^= cell.count(b'"') % 2 == 1
  return True


def _is_number(cell: bytes) -> bool:
  try:
    float(cell or b'0')
  except ValueError:
    return False
  return True


def is_list(text: str) -> bool:
  """Whether a text is a list of texts in quotes, or of none, by its looks."""
  text = text.strip()
  return text[:1] == '[' and bool(_OF_TEXTS.fullmatch(text))


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
