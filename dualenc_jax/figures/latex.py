r"""Tables as LaTeX, for `\input` into a paper that uses booktabs."""

from collections.abc import Iterator, Sequence
import itertools
import re

from dualenc_jax.figures.table import Cell, MISSING, Table

PREAMBLE = '% Needs \\usepackage{booktabs}.\n'
# Of all other characters pdfLaTeX shows those that its fonts have.
_SPECIAL = {
    '\\': r'\textbackslash{}',
    '{': r'\{',
    '}': r'\}',
    '$': r'\$',
    '&': r'\&',
    '#': r'\#',
    '%': r'\%',
    '_': r'\_',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '<': r'\textless{}',
    '>': r'\textgreater{}',
    '|': r'\textbar{}',
    # Else the end of the line before would take them for its arguments.
    '[': '{[}',
    '*': '{*}',
}
# Beyond so many columns a table spans the page's two columns.
_NARROW = 6


def latex(table: Table) -> str:
  """A `table` environment, `table*` if it is wide."""
  wide = len(table.heads) + len(table.columns) > _NARROW
  environment = 'table*' if wide else 'table'
  columns = 'l' * len(table.heads) + 'r' * len(table.columns)
  caption = ' '.join([f'{table.title}.', *table.notes])
  return '\n'.join(
      [
          f'\\begin{{{environment}}}[t]',
          r'\centering',
          r'\small',
          f'\\begin{{tabular}}{{@{{}}{columns}@{{}}}}',
          r'\toprule',
          *_header(table),
          r'\midrule',
          *_rows(table),
          r'\bottomrule',
          r'\end{tabular}',
          f'\\caption{{{escaped(caption)}}}',
          f'\\label{{tab:{table.name}}}',
          f'\\end{{{environment}}}',
          '',
      ]
  )


def escaped(name: str) -> str:
  """A name as LaTeX that shows it as it is, in one line."""
  name = ' '.join(name.split())
  shown = ''.join(_SPECIAL.get(character, character) for character in name)
  # Two hyphens would become a dash.
  return re.sub('-(?=-)', '-{}', shown)


def _header(table: Table) -> Iterator[str]:
  heads = [escaped(head) for head in table.heads]
  spans = [
      (name, len(list(columns)))
      for name, columns in itertools.groupby(table.columns, lambda c: c[0])
  ]
  if any(name for name, _ in spans):
    titles = [
        f'\\multicolumn{{{width}}}{{c}}{{{escaped(name)}}}'
        for name, width in spans
    ]
    yield _line([''] * len(heads) + titles)
    start = len(heads) + 1
    rules = []
    for name, width in spans:
      if name:
        rules.append(f'\\cmidrule(lr){{{start}-{start + width - 1}}}')
      start += width
    yield ' '.join(rules)
  yield _line([*heads, *(escaped(name) for _, name in table.columns)])


def _rows(table: Table) -> Iterator[str]:
  for row in table.rows:
    if row.ruled:
      yield r'\midrule'
    yield _line([*map(escaped, row.heads), *map(_cell, row.cells)])


def _cell(cell: Cell) -> str:
  if cell.text == MISSING:
    return '--'
  # A hyphen in front of a number is a minus.
  shown = re.sub(r'^-(?=\d)', '$-$', escaped(cell.text))
  return f'\\textbf{{{shown}}}' if cell.bold else shown


def _line(cells: Sequence[str]) -> str:
  return ' & '.join(cells) + r' \\'
