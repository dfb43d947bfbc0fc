"""Cells in quotes, as spreadsheets and pandas write them: CSV, quoted TSV."""

from collections.abc import Iterator
import csv
import itertools
import pathlib

from dualenc_jax.readers import packed

# Bytes of a TSV's begin that tell whether its cells are in quotes.
_SAMPLE = 2**24
_DELIMITERS = ',;\t'


def numbered(
    path: pathlib.Path, delimiter: str | None
) -> Iterator[tuple[int, list[str] | csv.Error]]:
  """Yields (its first line's number, cells) of each row that is not blank.

  A cell may go over several lines; `""` in one is a quote. Bytes that are not
  UTF-8 are lone surrogates. What is no row is the error that says why, and
  reading goes on in the next line.

  Args:
    path: a plain or .gz file.
    delimiter: None for the comma, semicolon or tab that the first line has
      most of.

  Raises:
    UserError: as `packed.lines`.
  """
  # For the process: its own limit, 128 KiB, is less than many documents have.
  csv.field_size_limit(packed.LONGEST_LINE)
  number = 0

  def lines() -> Iterator[str]:
    nonlocal number
    for number, line in packed.lines(path, blank=True):
      yield line.decode('utf-8', 'surrogateescape') + '\n'

  stream = lines()
  first = next(stream, None)
  if first is None:
    return
  if delimiter is None:
    delimiter = max(_DELIMITERS, key=first.count)
  reader = csv.reader(
      itertools.chain([first], stream), delimiter=delimiter, strict=True
  )
  start, row = 1, None
  while True:
    try:
      row = next(reader)
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
  doubled quote within, or all cells that are no numbers are in quotes. A plain
  file with a quote within a cell, or around one by chance, is none.
  """
  line_count = size = 0
  quotes = False
  for line_count, line in packed.lines(path):
    quotes = quotes or b'"' in line
    size += len(line) + 1
    if size > _SAMPLE:
      break
  if not quotes:
    return False
  needed, everywhere, width = False, True, None
  for start, cells in numbered(path, '\t'):
    if start > line_count:
      break
    if isinstance(cells, csv.Error):
      return False
    width = width or len(cells)
    if len(cells) != width or width < 2:
      return False
    needed = needed or any({'\t', '\n', '"'} & {*cell} for cell in cells)
  if needed:
    return _as_written(path, line_count)
  for number, line in packed.lines(path):
    if number > line_count:
      break
    everywhere = all(
        cell[:1] == cell[-1:] == b'"' or _is_number(cell)
        for cell in line.split(b'\t')
    )
    if not everywhere:
      return False
  return True


def _as_written(path: pathlib.Path, line_count: int) -> bool:
  """Whether no quote stands in a cell that is not in quotes itself.

  A writer of quotes puts such a cell in quotes; csv reads it all the same.
  """
  inside = False
  for number, line in packed.lines(path, blank=True):
    if number > line_count:
      break
    for cell in line.split(b'\t'):
      if not inside and b'"' in cell and not cell.startswith(b'"'):
        return False
      inside ^= cell.count(b'"') % 2 == 1
  return True


def _is_number(cell: bytes) -> bool:
  try:
    float(cell or b'0')
  except ValueError:
    return False
  return True
