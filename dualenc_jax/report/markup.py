"""HTML and SVG out of small functions; text is escaped unless it is `Html`."""

from collections.abc import Iterable, Sequence
import html
from typing import Any

# Written without an end tag.
_EMPTY = frozenset(('circle', 'img', 'line', 'meta', 'path', 'rect'))


class Html(str):
  """Markup. Any other string is text."""


def tag(name: str, /, *children: str, **attributes: Any) -> Html:
  """An element.

  Args:
    name: of the element.
    *children: markup as it is, other text escaped.
    **attributes: a trailing underscore is dropped (`class_`), others become
      hyphens; None leaves the attribute out, True writes its name alone.
  """
  words = [name]
  for key, value in attributes.items():
    key = key.rstrip('_').replace('_', '-')
    if value is True:
      words.append(key)
    elif value is not None:
      words.append(f'{key}="{html.escape(str(value))}"')
  if name in _EMPTY:
    return Html(f'<{" ".join(words)}/>')
  return Html(f'<{" ".join(words)}>{join(*children)}</{name}>')


def join(*children: str) -> Html:
  """Children one after the other, text escaped."""
  return Html(
      ''.join(c if isinstance(c, Html) else html.escape(c) for c in children)
  )


def section(identifier: str, title: str, *children: str) -> Html:
  """A section of the page that a link can point to."""
  return tag(
      'section', tag('h2', title), '\n', *children, '\n', id=identifier
  )


def folded(title: str, *children: str, **attributes: Any) -> Html:
  """Children that a click on the title shows."""
  return tag('details', tag('summary', title), *children, **attributes)


def scrolling(head: Sequence[str], rows: Iterable[Html]) -> Html:
  """A table that scrolls by itself where it is wider than the page."""
  return tag(
      'div',
      tag(
          'table',
          tag('thead', tag('tr', *(tag('th', h, scope='col') for h in head))),
          tag('tbody', *rows),
      ),
      class_='scroll',
      tabindex=0,
  )
