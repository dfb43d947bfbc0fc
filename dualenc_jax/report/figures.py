"""The section of the embedding space: figures and numbers of an analysis."""

import base64
from collections.abc import Mapping
import contextlib
import pathlib

from dualenc_jax.report.axis import precise
from dualenc_jax.report.markup import Html, scrolling, section, tag
from dualenc_jax.report.material import Analysis, Material
from dualenc_jax.results.table import MISSING

# Larger drawings go in as PNG, if there is one.
_SMALL = 200_000
_TYPES = {'svg': 'image/svg+xml', 'png': 'image/png'}


def render(material: Material) -> tuple[Html, list[str]]:
  """The section, and a sentence for each picture that is missing."""
  parts, problems = [], []
  for analysis in material.analyses:
    figures = []
    for figure in analysis.figures:
      source = embedded(analysis.folder, figure)
      if source is None:
        problems.append(
            f'{analysis.folder} has no picture of {figure["title"]!r}, which'
            ' its analysis.json names; run `dualenc analyze` again.'
        )
        continue
      figures.append(
          tag(
              'figure',
              tag('figcaption', tag('b', figure['title'])),
              tag('img', src=source, alt=figure['title']),
              tag('p', figure['caption']),
              class_='picture',
          )
      )
    parts += [
        tag('h3', analysis.folder.name),
        _numbers(analysis),
        tag('div', *figures, class_='pictures'),
    ]
  if not parts:
    return Html(''), problems
  return section('space', 'Embedding space', *parts), problems


def embedded(folder: pathlib.Path, figure: Mapping[str, str]) -> str | None:
  """A picture as a data URI: the SVG if it is small, else the PNG.

  None if neither file can be read.
  """
  content = {}
  for kind in _TYPES:
    # Only the name: nothing outside of the folder gets into the page.
    path = folder / pathlib.PurePath(str(figure.get(kind))).name
    # A ValueError is of a name that no file can have.
    with contextlib.suppress(OSError, ValueError):
      content[kind] = path.read_bytes()
  if not content:
    return None
  kind = 'svg' if len(content.get('svg', b'')) <= _SMALL else 'png'
  if kind not in content:
    (kind,) = content
  data = base64.b64encode(content[kind]).decode()
  return f'data:{_TYPES[kind]};base64,{data}'


def _numbers(analysis: Analysis) -> Html:
  """The numbers of one model as a list, those of several as a table."""
  names = dict.fromkeys(n for row in analysis.numbers.values() for n in row)
  if len(analysis.numbers) > 1:
    rows = [
        tag(
            'tr',
            tag('th', name.replace('_', ' '), scope='row'),
            *(_cell(row.get(name)) for row in analysis.numbers.values()),
        )
        for name in names
    ]
    return scrolling(['', *analysis.numbers], rows)
  (numbers,) = analysis.numbers.values()
  items = [
      tag(
          'div',
          tag('dt', name.replace('_', ' ')),
          tag('dd', precise(numbers[name]), title=repr(numbers[name])),
      )
      for name in names
  ]
  return tag('dl', *items, class_='facts')


def _cell(value: float | None) -> Html:
  if value is None:
    return tag('td', MISSING)
  return tag('td', precise(value), title=repr(value))
