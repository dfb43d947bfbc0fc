"""HTML out of small functions; text is escaped unless it is `Html`."""

import dataclasses
import html
import re
from typing import Any

from dualenc_jax.figures.table import Cell, Row, Table
from dualenc_jax.io import untrusted

# Columns that a page of 1,100 pixels has room for.
_WIDE = 14
# Written without an end tag.
_EMPTY = frozenset(('img', 'meta'))


class Html(str):
  """Markup. Any other string is text."""


def tag(name: str, /, *children: str, **attributes: Any) -> Html:
  """An element.

  Args:
    name: of the element.
    *children: markup as it is, other text escaped.
    **attributes: a trailing underscore is dropped (`class_`), others become
      hyphens; None leaves the attribute out.
  """
  words = [name]
  for key, value in attributes.items():
    if value is not None:
      key = key.rstrip('_').replace('_', '-')
      words.append(f'{key}="{escaped(str(value))}"')
  if name in _EMPTY:
    return Html(f'<{" ".join(words)}/>')
  return Html(f'<{" ".join(words)}>{join(*children)}</{name}>')


def join(*children: str) -> Html:
  """Children one after the other, text escaped."""
  return Html(
      ''.join(c if isinstance(c, Html) else escaped(c) for c in children)
  )


def escaped(text: str) -> str:
  """Text as HTML, control characters as `untrusted.visible` shows them."""
  return html.escape(untrusted.visible(text))


def section(identifier: str, title: str, *children: str) -> Html:
  """A section of the page that a link can point to; '' without children."""
  if not any(children):
    return Html('')
  return tag(
      'section', tag('h2', title), '\n', *children, '\n', id=identifier
  )


def folded(title: str, *children: str, **attributes: Any) -> Html:
  """Children that a click on the title shows."""
  return tag('details', tag('summary', title), *children, **attributes)


def set_table(table: Table) -> Html:
  """A table that scrolls by itself where it is wider than the page.

  Rows and columns of one that is much wider than high change places.
  """
  if len(table.rows) < _WIDE < len(table.columns):
    table = _turned(table)
  columns = [f'{group} {name}'.strip() for group, name in table.columns]
  rows = [
      tag(
          'tr',
          *(tag('th', _breaking(h), scope='row') for h in row.heads),
          *map(_cell, row.cells),
          class_='ruled' if row.ruled else None,
      )
      for row in table.rows
  ]
  head = [
      tag('th', _breaking(name), scope='col')
      for name in (*table.heads, *columns)
  ]
  grid = tag('table', tag('thead', tag('tr', *head)), tag('tbody', *rows))
  return join(
      tag('h3', table.title) if table.title else '',
      tag('div', grid, class_='scroll', tabindex=0),
      *(tag('p', note, class_='note') for note in table.notes),
  )


def _turned(table: Table) -> Table:
  return dataclasses.replace(
      table,
      heads=('',),
      columns=tuple(('', ', '.join(row.heads)) for row in table.rows),
      rows=tuple(
          Row((f'{group} {name}'.strip(),), tuple(cells))
          for (group, name), *cells in zip(
              table.columns, *(row.cells for row in table.rows)
          )
      ),
  )


def _breaking(name: str) -> Html:
  """A heading with places to break at: many of them stand side by side."""
  return Html(re.sub(r'(?<=\w\w\w)(?=@)|(?<=/)', '<wbr/>', escaped(name)))


def _cell(cell: Cell) -> Html:
  text = tag('b', cell.text) if cell.bold else cell.text
  return tag('td', text, title=cell.exact or None)


def precise(value: float) -> str:
  """A value to four digits, whole numbers in full."""
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'
