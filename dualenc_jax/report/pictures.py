"""The section of the embedding space: figures and numbers of an analysis."""

import base64
from collections.abc import Mapping
import contextlib
import pathlib

from dualenc_jax.figures.table import Cell, MISSING, Row, Table
from dualenc_jax.io import untrusted
from dualenc_jax.report.contents import Analysis, Contents
from dualenc_jax.report.markup import (
  folded,
  Html,
  precise,
  section,
  set_table,
  tag,
)

# Larger drawings go in as PNG, if there is one.
_SMALL = 200_000
_LARGEST = 2**26
_TYPES = {'svg': 'image/svg+xml', 'png': 'image/png'}


def render(contents: Contents) -> tuple[Html, list[str]]:
  """The section, and a sentence for each picture that is missing."""
  parts, problems = [], []
  for analysis in contents.analyses:
    figures = []
    for figure in analysis.figures:
      source = embedded(analysis.folder, figure)
      if source is None:
        problems.append(
            f'{analysis.folder} has no picture of {figure["title"]!r}, which'
            ' its analysis.json names; run `dualenc analyze` again.'
        )
        continue
      caption = tag('figcaption', tag('b', figure['title']))
      picture = tag('img', src=source, alt=figure['title'])
      note = tag('p', figure['caption'], class_='note')
      figures.append(tag('figure', caption, picture, note))
    name = analysis.folder.name
    parts.append(tag('h3', name))
    parts.append(tag('div', *figures, class_='pictures'))
    numbers = set_table(_numbers(analysis))
    parts.append(folded(f'All numbers of {name}', numbers))
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
      content[kind] = untrusted.read(path, _LARGEST)
  if not content:
    return None
  kind = 'svg' if len(content.get('svg', b'')) <= _SMALL else 'png'
  if kind not in content:
    (kind,) = content
  data = base64.b64encode(content[kind]).decode()
  return f'data:{_TYPES[kind]};base64,{data}'


def _numbers(analysis: Analysis) -> Table:
  """A column a model."""
  models = analysis.numbers.values()
  names = dict.fromkeys(name for values in models for name in values)
  return Table(
      name='numbers',
      title='',
      heads=('',),
      columns=tuple(('', model) for model in analysis.numbers),
      rows=tuple(
          Row(
              (name.replace('_', ' '),),
              tuple(_cell(values.get(name)) for values in models),
          )
          for name in names
      ),
  )


def _cell(value: float | None) -> Cell:
  if value is None:
    return Cell(MISSING)
  return Cell(precise(value), exact=repr(value))
