"""The whole page, in the layout of `page.html`, and its tables."""

import base64
from collections.abc import Iterator, Mapping
import contextlib
import importlib.util
import json
import pathlib
import re
from typing import Any

import jinja2
import markdown_it
from markupsafe import Markup

import dualenc_jax
from dualenc_jax.evaluation.report import curves, summary
from dualenc_jax.evaluation.report.contents import Contents
from dualenc_jax.evaluation.report.summary import precise
from dualenc_jax.evaluation.results import tables
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.table import Table

_LARGEST = 2**26  # Bytes of a picture.
# Notes are at the top of the page; digests are those of files or tensors.
_LEFT_OUT = ('notes', 'files', 'digests')


def render(contents: Contents) -> str:
  """The page, the same for the same contents."""
  can_draw = importlib.util.find_spec('matplotlib') is not None
  spaces = [
      (
          analysis.folder.name,
          [
              (figure, source)
              for figure in analysis.figures
              if (source := _embed(analysis.folder, figure))
          ],
          [
              (name.replace('_', ' '), precise(value))
              for name, value in analysis.numbers.items()
          ],
      )
      for analysis in contents.analyses
  ]
  environment = jinja2.Environment(
      loader=jinja2.PackageLoader(__package__, ''),
      autoescape=True,
      finalize=_visible,
      lstrip_blocks=True,
      trim_blocks=True,
      undefined=jinja2.StrictUndefined,
  )
  environment.filters |= {'markdown': _markdown, 'precise': precise}
  return environment.get_template('page.html').render(
      contents=contents,
      tables=result_tables(contents),
      charts=curves.charts(contents.runs) if can_draw else None,
      has_curves=any(contents.runs.values()),
      spaces=spaces,
      facts=_facts(contents),
      version=dualenc_jax.__version__,
      summary=summary,
      is_code=re.compile(r'\n[ \t]+\S').search,
  )


def _visible(value: Any) -> Any:
  """Text with control characters as escapes; markup stays as it is."""
  is_markup = hasattr(value, '__html__')
  return value if is_markup else untrusted.escape_controls(str(value))


def _markdown(text: str) -> Markup:
  """Markdown as HTML; tags stay text, and pictures are left to their words."""
  parser = markdown_it.MarkdownIt('commonmark', {'html': False})
  parser.enable('table').disable('image')
  return Markup(parser.render(untrusted.escape_controls(text)))


def _embed(folder: pathlib.Path, figure: Mapping[str, str]) -> str | None:
  """A picture as a data URI; None if there is no file."""
  # Only names are used, so that nothing outside of the folder is read.
  path = folder / pathlib.PurePath(str(figure.get('png'))).name
  # A ValueError is raised for a name that no file can have.
  with contextlib.suppress(OSError, ValueError):
    content = untrusted.read(path, _LARGEST)
    return f'data:image/png;base64,{base64.b64encode(content).decode()}'
  return None


def _facts(contents: Contents) -> Iterator[tuple[str, str]]:
  """Yields titles and facts: of training, and of each set and analysis."""
  facts: dict[str, Mapping[str, Any]] = {'Training': {
      name: value for name, value in contents.meta.items()
      if name not in _LEFT_OUT
  }}
  for evaluation in contents.evaluations:
    facts[f'Evaluation {evaluation.name}'] = evaluation.result.provenance
  for analysis in contents.analyses:
    facts[f'Analysis {analysis.folder.name}'] = analysis.facts
  for title, own in facts.items():
    if own:
      yield title, json.dumps(own, indent=2, ensure_ascii=False)


def result_tables(contents: Contents) -> list[Table]:
  """The tables of `dualenc evaluate`, and those of codecs."""
  folders = [pathlib.Path(e.result.where) for e in contents.evaluations]
  return [
      *tables.paper_tables(contents.systems),
      *filter(None, map(tables.codec_table, folders)),
  ]
