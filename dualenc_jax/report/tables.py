"""The section of results: the papers' tables, then every metric there is."""

from collections.abc import Iterable, Mapping, Sequence

from dualenc_jax.report.markup import Html, join, scrolling, section, tag
from dualenc_jax.report.material import Evaluation, Material
from dualenc_jax.results import mixed, tables
from dualenc_jax.results.folder import Model
from dualenc_jax.results.table import Cell, MISSING, Row, Table

_ORDER = (
    'P@1',
    'MRR',
    'MRR@10',
    'nDCG@10',
    'MAP',
    'Recall@1',
    'Recall@10',
    'Recall@100',
    'Recall@1000',
    'Top-5',
    'Top-20',
    'Top-100',
)


def render(material: Material, model: Model) -> Html:
  """The section; nothing of it without results."""
  parts = []
  if model.results:
    # What is in none of the papers' tables is in ours alone.
    papers = [t for t in tables.paper_tables([model]) if t.name != 'other']
    if papers:
      parts.append(
          tag('div', *(_table(upright(t)) for t in papers), class_='papers')
      )
    parts.append(_every_metric(material.evaluations, titled=bool(papers)))
  if material.baselines:
    parts.append(_baselines(material.baselines))
  if not parts:
    return Html('')
  return section('results', 'Results', *parts)


def upright(table: Table) -> Table:
  """A single row that is too wide for a phone, as a row a group of columns.

  Tables whose columns have no groups, such as that of BEIR, stay as they are.
  """
  groups = list(dict.fromkeys(group for group, _ in table.columns))
  names = list(dict.fromkeys(name for _, name in table.columns))
  if not all(groups) or len(table.rows) != 1:
    return table
  if len(groups) * len(names) != len(table.columns):
    return table
  (row,) = table.rows
  cells = dict(zip(table.columns, row.cells))
  return Table(
      name=table.name,
      title=table.title,
      heads=('Task',),
      columns=tuple(('', name) for name in names),
      rows=tuple(
          Row(
              (group,),
              tuple(cells[group, name] for name in names),
              ruled=group.startswith('Average'),
          )
          for group in groups
      ),
      notes=table.notes,
  )


def _table(table: Table) -> Html:
  """A table of the papers."""
  columns = [f'{group} {name}'.strip() for group, name in table.columns]
  rows = [
      tag(
          'tr',
          *(tag('th', head, scope='row') for head in row.heads),
          *map(_cell, row.cells),
          class_='ruled' if row.ruled else None,
      )
      for row in table.rows
  ]
  notes = [tag('p', note, class_='note') for note in table.notes]
  return tag(
      'div',
      tag('h3', table.title),
      scrolling([*table.heads, *columns], rows),
      *notes,
  )


def _every_metric(evaluations: Sequence[Evaluation], titled: bool) -> Html:
  metrics = _in_order(e.result.metrics for e in evaluations)
  rows = []
  for evaluation in evaluations:
    result = evaluation.result
    sizes = (result.provenance.get(k) for k in ('queries', 'passages'))
    rows.append(
        tag(
            'tr',
            tag('th', evaluation.name, scope='row'),
            *(_percent(result.metrics.get(m)) for m in metrics),
            *(tag('td', MISSING if n is None else f'{n:,}') for n in sizes),
        )
    )
  notes = mixed.notes({'': [e.result for e in evaluations]})
  return join(
      tag('h3', 'Every metric (%)') if titled else Html(''),
      scrolling(['Task and split', *metrics, 'queries', 'passages'], rows),
      *(tag('p', note, class_='note') for note in notes),
      tag(
          'p',
          '' if titled else 'In percent. ',
          'Point at a number to see all of its digits.',
          class_='note',
      ),
  )


def _baselines(systems: Mapping[str, Mapping[str, float]]) -> Html:
  metrics = _in_order(systems.values())
  best = {
      m: max(row[m] for row in systems.values() if m in row) for m in metrics
  }
  rows = [
      tag(
          'tr',
          tag('th', system, scope='row'),
          *(_percent(row.get(m), row.get(m) == best[m]) for m in metrics),
      )
      for system, row in systems.items()
  ]
  return join(
      tag('h3', 'Beside baselines (%), as the quickstart measured them'),
      scrolling(['System', *metrics], rows),
  )


def _in_order(rows: Iterable[Iterable[str]]) -> list[str]:
  names = {name for row in rows for name in row}
  return sorted(
      names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)
  )


def _cell(cell: Cell) -> Html:
  return tag('td', tag('b', cell.text) if cell.bold else cell.text)


def _percent(share: float | None, bold: bool = False) -> Html:
  if share is None:
    return tag('td', MISSING)
  text = f'{100 * share:.1f}'
  return tag('td', tag('b', text) if bold else text, title=repr(share))
