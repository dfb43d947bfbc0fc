"""A table, rendered as text, Markdown or LaTeX."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
import pathlib
import re

from dualenc_jax.utils import files, untrusted

MISSING = '-'
_LATEX_PREAMBLE = '% Needs \\usepackage{booktabs}.\n'
# After the end of a line, [ and * would be taken for its arguments.
_SPECIAL = {
    **{character: f'\\{character}' for character in '{}$&#%_'},
    '\\': r'\textbackslash{}',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '<': r'\textless{}',
    '>': r'\textgreater{}',
    '|': r'\textbar{}',
    '[': '{[}',
    '*': '{*}',
}


@dataclasses.dataclass(frozen=True)
class Cell:
  """A number or word; `exact` are all digits where the text has fewer."""

  text: str
  bold: bool = False
  exact: str = ''


@dataclasses.dataclass(frozen=True)
class Row:
  """A cell for each head and column; below a line if it is ruled."""

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


def write(
    folder: pathlib.Path, stem: str, tables: Sequence[Table]
) -> list[str]:
  """Writes STEM.md and STEM.tex; returns these names."""
  contents = {
      f'{stem}.md': '\n'.join(map(markdown, tables)),
      f'{stem}.tex': '\n'.join([_LATEX_PREAMBLE, *map(latex, tables)]),
  }
  for name, content in contents.items():
    files.write(folder / name, content)
  return list(contents)


def text(table: Table) -> str:
  """The table for a terminal."""
  lines = _align(table, str, lambda cell, is_bold: cell)
  rows = ['  '.join(line).rstrip() for line in lines]
  title = [table.title] if table.title else []
  return untrusted.escape_controls('\n'.join([*title, *rows, *table.notes, '']))


def markdown(table: Table) -> str:
  """The table in Markdown that is as readable unrendered."""
  header, *rows = _align(
      table, escape_markdown,
      lambda cell, is_bold: f'**{cell}**' if is_bold else cell,
  )
  heads = len(table.heads)
  rules = ['-' * len(cell) for cell in header[:heads]]
  rules += ['-' * (len(cell) - 1) + ':' for cell in header[heads:]]
  lines = [f'| {" | ".join(line)} |' for line in (header, rules, *rows)]
  notes = [f'\n{escape_markdown(note)}' for note in table.notes]
  title = [f'## {escape_markdown(table.title)}', ''] if table.title else []
  return '\n'.join([*title, *lines, *notes, ''])


def _align(
    table: Table, escape: Callable[[str], str],
    mark: Callable[[str, bool], str],
) -> list[list[str]]:
  """The header and the rows; heads to the left, the others to the right."""
  header = [*table.heads, *(f'{a} {b}'.strip() for a, b in table.columns)]
  lines = [list(map(escape, header))]
  for row in table.rows:
    cells = [mark(escape(cell.text), cell.bold) for cell in row.cells]
    lines.append([*map(escape, row.heads), *cells])
  widths = [max(3, *map(len, column)) for column in zip(*lines)]
  sides = ['<'] * len(table.heads) + ['>'] * len(table.columns)
  forms = [f'{side}{width}' for side, width in zip(sides, widths)]
  return [list(map(format, line, forms)) for line in lines]


def escape_markdown(name: str) -> str:
  """A name as Markdown that shows it as it is, in one line."""
  name = re.sub(r'([\\|*`\[]|<(?!\d))', r'\\\1', ' '.join(name.split()))
  # Inside a word an underscore means nothing.
  return re.sub(
      r'(?<!\w)_+|_+(?!\w)', lambda match: match[0].replace('_', r'\_'), name
  )


def latex(table: Table) -> str:
  """A `table*` environment, which spans the page's columns."""
  columns = 'l' * len(table.heads) + 'r' * len(table.columns)
  caption = ' '.join([f'{table.title}.', *table.notes])
  lines = [
      r'\begin{table*}[t]',
      r'\centering',
      r'\small',
      f'\\begin{{tabular}}{{@{{}}{columns}@{{}}}}',
      r'\toprule',
      *_tex_header(table),
      r'\midrule',
  ]
  for row in table.rows:
    lines += [r'\midrule'] * row.ruled
    heads = map(escape_latex, row.heads)
    lines.append(_tex_line([*heads, *map(_tex_cell, row.cells)]))
  lines += [
      r'\bottomrule',
      r'\end{tabular}',
      f'\\caption{{{escape_latex(caption)}}}',
      f'\\label{{tab:{table.name}}}',
      r'\end{table*}',
      '',
  ]
  return '\n'.join(lines)


def escape_latex(name: str) -> str:
  """A name as LaTeX that shows it as it is, in one line."""
  name = ' '.join(name.split())
  shown = ''.join(_SPECIAL.get(character, character) for character in name)
  # Two hyphens would become a dash.
  return re.sub('-(?=-)', '-{}', shown)


def _tex_header(table: Table) -> Iterator[str]:
  heads = list(map(escape_latex, table.heads))
  if any(group for group, _ in table.columns):
    titles, rules, start = [''] * len(heads), [], len(heads) + 1
    for group, columns in itertools.groupby(table.columns, lambda c: c[0]):
      width = len(list(columns))
      title = escape_latex(group)
      titles.append(f'\\multicolumn{{{width}}}{{c}}{{{title}}}')
      if group:
        rules.append(f'\\cmidrule(lr){{{start}-{start + width - 1}}}')
      start += width
    yield _tex_line(titles)
    yield ' '.join(rules)
  yield _tex_line([*heads, *(escape_latex(name) for _, name in table.columns)])


def _tex_cell(cell: Cell) -> str:
  if cell.text == MISSING:
    return '--'
  # A hyphen in front of a number is a minus.
  shown = re.sub(r'^-(?=\d)', '$-$', escape_latex(cell.text))
  return f'\\textbf{{{shown}}}' if cell.bold else shown


def _tex_line(cells: Sequence[str]) -> str:
  return ' & '.join(cells) + r' \\'
