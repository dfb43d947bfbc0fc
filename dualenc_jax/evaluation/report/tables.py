"""Tables of the page: the papers', every metric, numbers of an analysis."""

from collections.abc import Iterable, Mapping
import dataclasses

from dualenc_jax.evaluation.report.contents import (
  Analysis,
  Contents,
  Evaluation,
)
from dualenc_jax.evaluation.report.summary import precise
from dualenc_jax.evaluation.results import tables
from dualenc_jax.evaluation.results.result_files import Model
from dualenc_jax.utils import table as table_lib
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

_ORDER = (
    'P@1 MRR MRR@10 nDCG@10 MAP Recall@1 Recall@10 Recall@100 Recall@1000'
    ' Top-5 Top-20 Top-100'
).split()
# Columns that a page of 1,100 pixels has room for.
_WIDE = 14


def results(contents: Contents, model: Model) -> list[Table]:
  """The papers' tables, then every metric, then what the quickstart measured.

  What is in none of the papers' tables is in ours alone.
  """
  found = []
  if model.results:
    found += [t for t in tables.paper_tables([model]) if t.name != 'other']
    found.append(_every_metric(contents))
    found += [_of_codecs(e) for e in contents.evaluations if e.codecs]
  if systems := contents.baselines:
    metrics = _in_order(systems.values())
    rows = [[row.get(m) for m in metrics] for row in systems.values()]
    title = 'Beside baselines (%), as the quickstart measured them'
    cells = dict(zip(systems, table_lib.percents_by_column(rows)))
    found.append(_table('System', metrics, cells, title))
  return found


def _every_metric(contents: Contents) -> Table:
  evaluations = contents.evaluations
  metrics = _in_order(e.result.metrics for e in evaluations)
  rows = {}
  for evaluation in evaluations:
    facts = evaluation.result.provenance
    sizes = [facts.get(name) for name in ('queries', 'passages')]
    counts = [Cell(MISSING if n is None else f'{n:,}') for n in sizes]
    for name, result in {'': evaluation.result, **evaluation.beside}.items():
      # One at a time: models side by side have best ones, tasks have none.
      shares = [table_lib.percents([result.metrics.get(m)])[0] for m in metrics]
      head = ', '.join(filter(None, (evaluation.name, name)))
      rows[head] = (*shares, *counts)
  every = [r for e in evaluations for r in (e.result, *e.beside.values())]
  notes = tables.mixed_notes({'': every})
  notes = (*notes, 'Point at a number to see all of its digits.')
  columns = (*metrics, 'queries', 'passages')
  return _table('Task and split', columns, rows, 'Every metric (%)', notes)


def _of_codecs(evaluation: Evaluation) -> Table:
  rows, known = evaluation.codecs, evaluation.result.metrics
  metrics = _in_order(of.keys() & known for of in rows.values())
  names = ['bytes_per_passage', 'compression', *metrics, 'p', 'ms_a_query']

  def cell(of: Mapping[str, float], name: str) -> Cell:
    if (value := of.get(name)) is None:
      return Cell(MISSING)
    text = f'{100 * value:.1f}' if name in known else precise(value)
    return Cell(text, exact=repr(value))

  return _table(
      'Codec',
      ['bytes', 'times smaller', *metrics, 'p', 'ms'],
      {codec: tuple(cell(of, n) for n in names) for codec, of in rows.items()},
      f'Codecs on {evaluation.name} (%)',
      ('Bytes are of a passage; p of the paired randomization test against the'
       ' first; ms of a query, all at once.',),
  )


def numbers(analysis: Analysis) -> Table:
  """A column a model."""
  models = analysis.numbers.values()
  rows = {
      name.replace('_', ' '): tuple(
          Cell(precise(of[name]), exact=repr(of[name]))
          if name in of
          else Cell(MISSING)
          for of in models
      )
      for name in dict.fromkeys(name for of in models for name in of)
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


def _in_order(rows: Iterable[Iterable[str]]) -> list[str]:
  names = {name for row in rows for name in row}
  return sorted(
      names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)
  )


def turned(table: Table) -> Table:
  """Rows and columns change places if it is much wider than high."""
  if not len(table.rows) < _WIDE < len(table.columns):
    return table
  names = [f'{group} {name}'.strip() for group, name in table.columns]
  cells = zip(*(row.cells for row in table.rows))
  return dataclasses.replace(
      table,
      heads=('',),
      columns=tuple(('', ', '.join(row.heads)) for row in table.rows),
      rows=tuple(Row((name,), own) for name, own in zip(names, cells)),
  )
