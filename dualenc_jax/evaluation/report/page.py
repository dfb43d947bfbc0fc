"""The whole page, in the layout of `page.html`, and its tables."""

import base64
from collections.abc import Iterable, Iterator, Mapping
import contextlib
import html
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
from dualenc_jax.evaluation.report.comparisons import Comparisons
from dualenc_jax.evaluation.report.contents import Analysis, Contents
from dualenc_jax.evaluation.report.summary import precise
from dualenc_jax.evaluation.results import tables
from dualenc_jax.evaluation.results.result_files import Model
from dualenc_jax.utils import table as table_lib, untrusted
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

_LARGEST = 2**26  # Bytes of a picture.
# Notes are at the top of the page; digests are those of files or tensors.
_LEFT_OUT = ('notes', 'files', 'digests')
_ORDER = (
    'P@1 MRR MRR@10 nDCG@10 MAP Recall@1 Recall@10 Recall@100 Recall@1000'
    ' Top-5 Top-20 Top-100'
).split()


def render(contents: Contents, others: Comparisons) -> str:
  """The page, the same for the same contents."""
  runs = {others.name: contents.curves, **others.runs}
  can_draw = importlib.util.find_spec('matplotlib') is not None
  spaces = [
      (
          analysis.folder.name,
          [
              (figure, source)
              for figure in analysis.figures
              if (source := _embed(analysis.folder, figure))
          ],
          _number_table(analysis),
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
  environment.filters |= {
      'breaking': _breaking, 'markdown': _markdown, 'precise': precise
  }
  return environment.get_template('page.html').render(
      contents=contents,
      others=others,
      tables=result_tables(contents),
      charts=curves.charts(runs) if can_draw else None,
      has_curves=any(runs.values()),
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


def _breaking(name: str) -> Markup:
  """A heading with places to break at, as many stand side by side."""
  shown = html.escape(untrusted.escape_controls(name))
  return Markup(re.sub(r'(?<=\w\w\w)(?=@)|(?<=/)', '<wbr/>', shown))


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
  """The papers' tables, then every metric, then the quickstart's."""
  results = {e.result.key: e.result for e in contents.evaluations}
  model = Model(contents.name, contents.command_path, results)
  made = []
  if results:
    # Sets of no paper are in the table of every metric.
    made += [t for t in tables.paper_tables([model]) if t.name != 'other']
    made.append(_every_metric(contents))
    folders = [pathlib.Path(result.where) for result in results.values()]
    made += filter(None, map(tables.codec_table, folders))
  if systems := contents.baselines:
    metrics = _sort_metrics(systems.values())
    rows = [[row.get(m) for m in metrics] for row in systems.values()]
    title = 'Beside baselines (%), as the quickstart measured them'
    cells = dict(zip(systems, table_lib.percents_by_column(rows)))
    made.append(_table('System', metrics, cells, title))
  return made


def _every_metric(contents: Contents) -> Table:
  evaluations = contents.evaluations
  metrics = _sort_metrics(e.result.metrics for e in evaluations)
  rows = {}
  for evaluation in evaluations:
    facts = evaluation.result.provenance
    sizes = [facts.get(name) for name in ('queries', 'passages')]
    counts = [Cell(MISSING if n is None else f'{n:,}') for n in sizes]
    for name, result in {'': evaluation.result, **evaluation.systems}.items():
      # Each alone, as none is best among tasks.
      shares = [table_lib.percents([result.metrics.get(m)])[0] for m in metrics]
      head = ', '.join(filter(None, (evaluation.name, name)))
      rows[head] = (*shares, *counts)
  results = [r for e in evaluations for r in (e.result, *e.systems.values())]
  notes = tables.mixed_notes({'': results})
  notes = (*notes, 'Point at a number to see all of its digits.')
  columns = (*metrics, 'queries', 'passages')
  return _table('Task and split', columns, rows, 'Every metric (%)', notes)


def _number_table(analysis: Analysis) -> Table:
  """The numbers of an analysis, a column a model."""
  models = analysis.numbers.values()
  rows = {
      name.replace('_', ' '): tuple(
          Cell(precise(numbers[name]), exact=repr(numbers[name]))
          if name in numbers
          else Cell(MISSING)
          for numbers in models
      )
      for name in dict.fromkeys(name for numbers in models for name in numbers)
  }
  return _table('', analysis.numbers, rows)


def _table(
    head: str, columns: Iterable[str], rows: Mapping[str, tuple[Cell, ...]],
    title: str = '', notes: tuple[str, ...] = (),
) -> Table:
  return Table(
      name='',
      title=title,
      heads=(head,),
      columns=tuple(('', name) for name in columns),
      rows=tuple(Row((name,), cells) for name, cells in rows.items()),
      notes=notes,
  )


def _sort_metrics(rows: Iterable[Iterable[str]]) -> list[str]:
  names = {name for row in rows for name in row}
  return sorted(
      names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)
  )
