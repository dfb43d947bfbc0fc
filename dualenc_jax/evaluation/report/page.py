"""The whole page, in the layout of `page.html`."""

import base64
from collections.abc import Iterator, Mapping
import contextlib
import html
import importlib.util
import pathlib
import re
from typing import Any

import jinja2
import markdown_it
from markupsafe import Markup

import dualenc_jax
from dualenc_jax.evaluation.report import curves, summary, tables
from dualenc_jax.evaluation.report.comparisons import Comparisons
from dualenc_jax.evaluation.report.contents import Contents
from dualenc_jax.evaluation.results.result_files import Model
from dualenc_jax.utils import untrusted

# Larger drawings go in as PNG, if there is one.
_SMALL = 200_000
_LARGEST = 2**26
_TYPES = {'svg': 'image/svg+xml', 'png': 'image/png'}
# Hooks' notes are at the top of the page; digests are of each tensor.
_LEFT_OUT = ('notes', 'digests')


def render(contents: Contents, others: Comparisons) -> tuple[str, list[str]]:
  """The page, the same for the same contents, and what is damaged."""
  results = {e.result.key: e.result for e in contents.evaluations}
  runs = {others.name: contents.curves, **others.runs}
  can_draw = importlib.util.find_spec('matplotlib') is not None
  spaces, problems = [], [*contents.problems]
  for analysis in contents.analyses:
    pictures = []
    for figure in analysis.figures:
      if source := embedded(analysis.folder, figure):
        pictures.append((figure, source))
      else:
        problems.append(
            f'{analysis.folder} has no picture of {figure["title"]!r}, which'
            ' its analysis.json names; run `dualenc analyze` again.'
        )
    spaces.append((analysis.folder.name, pictures, tables.numbers(analysis)))
  environment = jinja2.Environment(
      loader=jinja2.PackageLoader(__package__, ''),
      autoescape=True,
      finalize=_visible,
      lstrip_blocks=True,
      trim_blocks=True,
      undefined=jinja2.StrictUndefined,
  )
  environment.filters |= {
      'breaking': _breaking, 'markdown': _markdown, 'precise': summary.precise
  }
  page = environment.get_template('page.html').render(
      contents=contents,
      others=others,
      model=Model(contents.name, contents.command_path, results),
      charts=curves.charts(runs) if can_draw else None,
      has_curves=any(runs.values()),
      spaces=spaces,
      problems=problems,
      facts=facts(contents),
      version=dualenc_jax.__version__,
      summary=summary,
      tables=tables,
      is_code=re.compile(r'\n[ \t]+\S').search,
  )
  return page, problems


def _visible(value: Any) -> Any:
  """Text with control characters as escapes; markup stays as it is."""
  return value if hasattr(value, '__html__') else untrusted.visible(str(value))


def _breaking(name: str) -> Markup:
  """A heading with places to break at: many of them stand side by side."""
  shown = html.escape(untrusted.visible(name))
  return Markup(re.sub(r'(?<=\w\w\w)(?=@)|(?<=/)', '<wbr/>', shown))


def _markdown(text: str) -> Markup:
  """Markdown as HTML; tags stay text, and pictures are left to their words."""
  parser = markdown_it.MarkdownIt('commonmark', {'html': False})
  parser.enable('table').disable('image')
  return Markup(parser.render(untrusted.visible(text)))


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
  first, last = [*content][0], [*content][-1]
  kind = first if len(content[first]) <= _SMALL else last
  data = base64.b64encode(content[kind]).decode()
  return f'data:{_TYPES[kind]};base64,{data}'


def facts(contents: Contents) -> Iterator[tuple[str, list[tuple[str, str]]]]:
  """What files say, the checkpoint's first, each set's and analysis' after."""
  meta = contents.meta
  if contents.step is not None:
    yield 'Training', flat({n: meta[n] for n in meta if n not in _LEFT_OUT})
  for evaluation in contents.evaluations:
    result = evaluation.result
    own = {'label': result.key.label, **result.provenance}
    yield f'Evaluation {evaluation.name}', flat(own)
  for analysis in contents.analyses:
    yield f'Analysis {analysis.folder.name}', flat(analysis.facts)


def flat(facts: Mapping[str, Any], prefix: str = '') -> list[tuple[str, str]]:
  """Names and values, those of objects inside with a dot; nothing is null."""
  rows = []
  for name, value in facts.items():
    name = f'{prefix}{name}'.replace('_', ' ')
    if isinstance(value, dict):
      rows += flat(value, f'{name}.')
    elif isinstance(value, list):
      rows.append((name, ', '.join(map(str, value))))
    elif value is not None:
      rows.append((name, str(value) or '(empty)'))
  return rows
