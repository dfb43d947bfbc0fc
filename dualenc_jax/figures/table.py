"""A table, and how it looks as text and as Markdown."""

from collections.abc import Callable, Sequence
import dataclasses
import re

MISSING = '-'


@dataclasses.dataclass(frozen=True)
class Cell:
  """A number or word of a table.

  Attributes:
    text: what it shows.
    bold: whether it is among the best.
    exact: all digits of the number; '' where the text has them.
  """

  text: str
  bold: bool = False
  exact: str = ''


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of a table.

  Attributes:
    heads: what the row is about, one for each of the table's heads.
    cells: one for each of its columns.
    ruled: whether a line is drawn above it.
  """

  heads: tuple[str, ...]
  cells: tuple[Cell, ...]
  ruled: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
  """A table, ready to be set.

  Attributes:
    name: a word for links to it.
    title: what it shows; '' for a table that needs none.
    heads: headings of the columns on the left that say what a row is about.
    columns: headings of the others. Neighbours with the same first part stand
      under one heading; it is empty where there is none.
    rows: from the top.
    notes: sentences below it.
  """

  name: str
  title: str
  heads: tuple[str, ...]
  columns: tuple[tuple[str, str], ...]
  rows: tuple[Row, ...]
  notes: tuple[str, ...] = ()


def percents(values: Sequence[float | None]) -> tuple[Cell, ...]:
  """Shares as percentages with one decimal, the best in bold.

  Equal ones are bold together, as they are read. One value alone is not best.
  """
  texts = [MISSING if v is None else f'{100 * v:.1f}' for v in values]
  there = [value for value in values if value is not None]
  best = f'{100 * max(there):.1f}' if len(there) > 1 else None
  return tuple(
      Cell(text, text == best, '' if value is None else repr(value))
      for text, value in zip(texts, values)
  )


def percents_by_column(
    rows: Sequence[Sequence[float | None]],
) -> list[tuple[Cell, ...]]:
  """`percents` with the best of every column of R rows in bold."""
  return list(zip(*map(percents, zip(*rows))))


def markdown(table: Table) -> str:
  """The table in Markdown that is as readable unrendered."""
  header, *rows = _aligned(table, escaped, _starred)
  heads = len(table.heads)
  rules = [
      '-' * len(cell) if i < heads else '-' * (len(cell) - 1) + ':'
      for i, cell in enumerate(header)
  ]
  lines = [f'| {" | ".join(line)} |' for line in (header, rules, *rows)]
  notes = [f'\n{escaped(note)}' for note in table.notes]
  title = [f'## {escaped(table.title)}', ''] if table.title else []
  return '\n'.join([*title, *lines, *notes, ''])


def text(table: Table) -> str:
  """The table for a terminal."""
  lines = _aligned(table, str, lambda cell: cell.text)
  rows = ['  '.join(line).rstrip() for line in lines]
  return '\n'.join([table.title, *rows, *table.notes, ''])


def _aligned(
    table: Table, word: Callable[[str], str], number: Callable[[Cell], str]
) -> list[list[str]]:
  """The header and the rows; heads to the left, the others to the right."""
  header = [*table.heads, *(f'{a} {b}'.strip() for a, b in table.columns)]
  lines = [
      [word(cell) for cell in header],
      *([*map(word, row.heads), *map(number, row.cells)] for row in table.rows),
  ]
  widths = [max(3, *map(len, column)) for column in zip(*lines)]
  heads = len(table.heads)
  return [
      [
          cell.ljust(width) if i < heads else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(line, widths))
      ]
      for line in lines
  ]


def escaped(name: str) -> str:
  """A name as Markdown that shows it as it is, in one line."""
  name = re.sub(r'([\\|*`\[]|<(?!\d))', r'\\\1', ' '.join(name.split()))
  # Inside a word an underscore means nothing.
  return re.sub(r'(?<!\w)(_+)|(_+)(?!\w)', _escape_all, name)


def _escape_all(found: re.Match) -> str:
  return ''.join(f'\\{character}' for character in found[0])


def _starred(cell: Cell) -> str:
  shown = escaped(cell.text)
  return f'**{shown}**' if cell.bold else shown
