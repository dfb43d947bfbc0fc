"""The section of results: the papers' tables, then every metric there is."""

from collections.abc import Iterable, Mapping, Sequence

from dualenc_jax.figures import table as table_lib
from dualenc_jax.figures.table import Cell, MISSING, Row, Table
from dualenc_jax.report.contents import Contents, Evaluation
from dualenc_jax.report.markup import Html, section, set_table, tag
from dualenc_jax.results import tables
from dualenc_jax.results.folder import Model

_ORDER = (
    'P@1 MRR MRR@10 nDCG@10 MAP Recall@1 Recall@10 Recall@100 Recall@1000'
    ' Top-5 Top-20 Top-100'
).split()
_POINT = 'Point at a number to see all of its digits.'


def render(contents: Contents, model: Model) -> Html:
  """The section; nothing of it without results."""
  parts = []
  if model.results:
    # What is in none of the papers' tables is in ours alone.
    parts += [t for t in tables.paper_tables([model]) if t.name != 'other']
    parts.append(_every_metric(contents.evaluations))
  if contents.baselines:
    parts.append(_baselines(contents.baselines))
  told = [tag('p', line, class_='note') for line in contents.before_after]
  return section('results', 'Results', *map(set_table, parts), *told)


def _every_metric(evaluations: Sequence[Evaluation]) -> Table:
  metrics = _in_order(e.result.metrics for e in evaluations)
  rows = []
  for evaluation in evaluations:
    result = evaluation.result
    sizes = [result.provenance.get(k) for k in ('queries', 'passages')]
    counts = [Cell(MISSING if n is None else f'{n:,}') for n in sizes]
    for name, values in {'': result.metrics, **evaluation.beside}.items():
      # One at a time: models side by side have best ones, tasks have none.
      shares = [table_lib.percents([values.get(m)])[0] for m in metrics]
      head = ', '.join(filter(None, (evaluation.name, name)))
      rows.append(Row((head,), (*shares, *counts)))
  notes = tables.mixed_notes({'': [e.result for e in evaluations]})
  return Table(
      name='metrics',
      title='Every metric (%)',
      heads=('Task and split',),
      columns=tuple(('', name) for name in (*metrics, 'queries', 'passages')),
      rows=tuple(rows),
      notes=(*notes, _POINT),
  )


def _baselines(systems: Mapping[str, Mapping[str, float]]) -> Table:
  metrics = _in_order(systems.values())
  cells = table_lib.percents_by_column(
      [[row.get(m) for m in metrics] for row in systems.values()]
  )
  return Table(
      name='baselines',
      title='Beside baselines (%), as the quickstart measured them',
      heads=('System',),
      columns=tuple(('', metric) for metric in metrics),
      rows=tuple(Row((name,), row) for name, row in zip(systems, cells)),
  )


def _in_order(rows: Iterable[Iterable[str]]) -> list[str]:
  names = {name for row in rows for name in row}
  return sorted(
      names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)
  )
