"""The papers' tables, from the results of one or several models."""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Any

from dualenc_jax.evaluation import metrics as metrics_lib
from dualenc_jax.evaluation.results import benchmarks, significance
from dualenc_jax.evaluation.results.benchmarks import Benchmark, EvaluatedSet
from dualenc_jax.evaluation.results.result_files import (
  ASKED,
  CODECS,
  describe_words,
  METRICS,
  Model,
  read_result,
  Result,
  size,
  TIME,
)
from dualenc_jax.utils import table as table_lib
from dualenc_jax.utils.table import (
  Cell,
  MISSING,
  percents,
  percents_by_column,
  Row,
  Table,
)

_OTHER_METRICS = (
    'P@1', 'MRR', 'MRR@10', 'nDCG@10', 'MAP', 'Recall@10', 'Recall@100',
    *benchmarks.OPEN_NQ_METRICS,
)
# Metrics of the table of codecs: the first that there is, and the first recall.
_OF_CODECS = (
    'nDCG@10', 'MRR', 'P@1', 'Top-20', 'Recall@1000', 'Recall@100',
)
_Models = Sequence[Model]
_Sets = Sequence[EvaluatedSet]


def write_tables(folder: pathlib.Path, models: _Models) -> list[str]:
  """Writes tables.md and tables.tex; see `paper_tables` and `table.write`."""
  return table_lib.write(folder, 'tables', paper_tables(models))


def paper_tables(models: _Models) -> list[Table]:
  """The tables that models of different names have results for, in this order.

  - QA retrieval, as SamToNe's table 1 and Dong 2022's table 2: a row a model,
    P@1 and MRR by set, and their averages.
  - BEIR, as SamToNe's table 2: a row a set, nDCG@10 by model, the average.
  - Open NQ, as Dong 2022's table 3: top-k accuracy by model; a table a split.
  - All other results, rankings of documents too: a row a split and model.
  - The metrics that were asked for on the sets of the first three, likewise.

  Notes say where a model's figures are not all of one checkpoint or run.
  """
  sets = benchmarks.in_order(
      evaluated
      for model in models
      for evaluated in benchmarks.group(model.results)
  )
  qa, beir, open_nq, other = (
      [s for s in sets if s.benchmark is benchmark] for benchmark in Benchmark
  )
  of_papers = [*qa, *beir, *open_nq]
  tables = [
      _paper_table(
          'qa-retrieval',
          'Precision at 1 (P@1) (%) and mean reciprocal rank (MRR) (%) on QA'
          ' retrieval tasks',
          models, qa, benchmarks.QA_METRICS, benchmarks.QA_NAMES,
      ),
      _paper_table(
          'beir', 'nDCG@10 (%) on the BEIR benchmark',
          models, beir, benchmarks.BEIR_METRICS, benchmarks.BEIR_NAMES,
          by_set=True,
      ),
      *[
          _paper_table(
              f'open-nq-{one.split}',
              'Retrieval accuracy (%) on open-domain Natural Questions'
              f' ({one.split})',
              models, [one], benchmarks.OPEN_NQ_METRICS + benchmarks.QA_METRICS,
          )
          for one in open_nq
      ],
      _split_table(
          'other', 'Retrieval metrics (%) by task and split', models, other,
          (*_OTHER_METRICS, *_asked(models, other)),
      ),
      _split_table(
          'asked', 'Further metrics (%) by task and split', models,
          of_papers, _asked(models, of_papers),
      ),
  ]
  return [table for table in tables if table.rows]


def metric_lines(systems: Mapping[str, Mapping[str, float]]) -> str:
  """Metrics by line for a terminal, a column a system; '' has no name."""
  lines = []
  if any(systems):
    lines.append(f'  {"":<12}' + ''.join(f'{name:>10}' for name in systems))
  for metric in next(iter(systems.values())):
    values = [metrics.get(metric) for metrics in systems.values()]
    cells = ['' if value is None else f'{value:.4f}' for value in values]
    lines.append(f'  {metric:<12}' + ''.join(f'{cell:>10}' for cell in cells))
  return '\n'.join(lines)


def codec_table(folder: pathlib.Path) -> Table | None:
  """The codecs evaluated beside a result, by size; None without any.

  p is that of the first preferred metric against the embeddings themselves.
  """
  coded = [
      read_result(path.parent)
      for path in folder.glob(f'{CODECS}/*/{METRICS}')
  ]
  if not coded:
    return None
  first = read_result(folder)
  names = [m for m in _OF_CODECS if m in first.metrics]
  metrics = [names[0], *[m for m in names[1:] if m.startswith('Recall')][:1]]
  asked = first.provenance.get(ASKED, ())
  metrics += [m for m in asked if m in first.metrics and m not in metrics]
  floats, known = first.provenance['embedding_dtype'], coded[0].provenance
  size = known['bytes_per_passage'] * known['times_smaller']
  whole = {'codec': floats, 'bytes_per_passage': size, 'times_smaller': 1}
  coded.sort(key=lambda r: (-r.provenance['bytes_per_passage'], r.where))
  whole[TIME] = first.provenance.get(TIME)
  is_timed = whole[TIME] is not None
  heads = ['bytes', 'times smaller', *['ms'] * is_timed, *metrics, 'p']
  return Table(
      name='codecs',
      title=f'Codecs on {first.key} (%)',
      heads=('Codec',),
      columns=tuple(('', head) for head in heads),
      rows=tuple(
          Row((facts['codec'],), (
              Cell(f'{facts["bytes_per_passage"]:g}'),
              Cell(f'{facts["times_smaller"]:.3g}'),
              *[Cell(f'{facts.get(TIME) or 0:.2f}')] * is_timed,
              *(percents([result.metrics.get(m)])[0] for m in metrics),
              Cell(_p_value(first, result, metrics[0])),
          ))
          for facts, result in [
              (whole, first), *((r.provenance, r) for r in coded)
          ]
      ),
      notes=(
          f'Bytes are of a passage. p: of {metrics[0]} against {floats}, paired'
          ' randomization test.',
          *[_timing(first)] * is_timed,
      ),
  )


def _timing(first: Result) -> str:
  hits, device = (first.provenance.get(name) for name in ('depth', 'device'))
  return (
      f'ms: the search of one query for {hits} hits, or for as many as are'
      f' scored again; the median of 100, on {device}.'
  )


def _p_value(first: Result, result: Result, metric: str) -> str:
  if result is first:
    return MISSING
  one, other = (r.per_query().values[metric] for r in (first, result))
  return f'{significance.paired(one, other).p:.4f}'


def _paper_table(
    name: str, title: str, models: _Models, sets: _Sets,
    metrics: Sequence[str], averaged: Sequence[str] = (), by_set: bool = False,
) -> Table:
  """A table of sets and metrics by model.

  Models and metrics without a value are left out. The paper's average is over
  the sets `averaged`. Rows are models, or sets by the only metric.
  """
  metrics = _known(models, sets, metrics)
  models = _with_any(models, sets, metrics)
  entries = [(s.name, metric, [s]) for s in sets for metric in metrics]
  common = [
      s
      for s in sets
      if s.name in averaged
      and all(s.value(m, k) is not None for m in models for k in metrics)
  ]
  notes = _notes(models, sets, metrics)
  if len(common) > 1:
    is_whole = len(common) == len(averaged)
    heading = 'Average' if is_whole else f'Average of {len(common)}'
    entries += [(heading, metric, common) for metric in metrics]
    names = ', '.join(s.name for s in common)
    notes += (f'The average is over {names}, which all models have.',)
  if any(s.name == 'CQADupStack' for s in sets):
    notes += ('CQADupStack is the mean of its 12 parts.',)
  values = [
      [_mean(group, model, metric) for _, metric, group in entries]
      for model in models
  ]
  if by_set:
    columns = tuple(('', model.name) for model in models)
    rows = [
        Row((set_name,), percents(column), ruled=group is common)
        for (set_name, _, group), column in zip(entries, zip(*values))
    ]
  else:
    columns = tuple((set_name, metric) for set_name, metric, _ in entries)
    by_model = zip(models, percents_by_column(values))
    rows = [Row((model.name,), cells) for model, cells in by_model]
  head = 'Task' if by_set else 'Model'
  return Table(name, title, (head,), columns, tuple(rows), notes)


def _asked(models: _Models, sets: _Sets) -> list[str]:
  """The metrics that --metrics of an evaluation named, in one order."""
  results = (
      model.results.get(key) for model in models for s in sets for key in s.keys
  )
  asked = {m for r in results if r for m in r.provenance.get(ASKED, ())}
  return sorted(asked, key=lambda name: metrics_lib.parse(name).place)


def _split_table(
    name: str, title: str, models: _Models, sets: _Sets, metrics: Sequence[str]
) -> Table:
  """A table of metrics, with a row a split and model."""
  metrics = _known(models, sets, tuple(dict.fromkeys(metrics)))
  sets = [s for s in sets if _with_any(models, [s], metrics)]
  split = any(s.split for s in sets)
  rows: list[Row] = []
  for evaluated in sets:
    shown = _with_any(models, [evaluated], metrics)
    cells = percents_by_column(
        [[evaluated.value(m, metric) for metric in metrics] for m in shown]
    )
    heads = (evaluated.name, *[evaluated.split] * split)
    for model, row in zip(shown, cells):
      new = model is shown[0] and bool(rows) and len(models) > 1
      rows.append(Row((*heads, model.name), row, ruled=new))
  return Table(
      name=name,
      title=title,
      heads=('Task', *['Split'] * split, 'Model'),
      columns=tuple(('', metric) for metric in metrics),
      rows=tuple(rows),
      notes=_notes(models, sets, metrics) + tuple(_sizes(models, sets)),
  )


def _sizes(models: _Models, sets: _Sets) -> Iterator[str]:
  """Sizes of sets that are in no paper, where they could be looked up."""
  results = [
      model.results[key]
      for s in sets for key in s.keys for model in models
      if key in model.results
  ]
  sizes = {
      f'{r.key}, {words}': None
      for r in results
      if (words := size(r.provenance))
  }
  if sizes:
    yield f'Measured: {"; ".join(sizes)}.'


def _with_any(
    models: _Models, sets: _Sets, metrics: Sequence[str]
) -> list[Model]:
  """The models that have a value to show."""
  return [
      model
      for model in models
      if any(s.value(model, m) is not None for s in sets for m in metrics)
  ]


def _known(models: _Models, sets: _Sets, metrics: Sequence[str]) -> list[str]:
  return [m for m in metrics if _with_any(models, sets, [m])]


def _mean(sets: _Sets, model: Model, metric: str) -> float | None:
  values = [s.value(model, metric) for s in sets]
  known = [value for value in values if value is not None]
  return sum(known) / len(sets) if len(known) == len(sets) else None


def _notes(
    models: _Models, sets: _Sets, metrics: Sequence[str]
) -> tuple[str, ...]:
  shown = {
      model.name: [
          model.results[key]
          for evaluated in sets
          if _with_any([model], [evaluated], metrics)
          for key in evaluated.keys
      ]
      for model in models
  }
  best = ['The best are in bold.'] * (len(models) > 1)
  return (*best, *mixed_notes(shown))


def mixed_notes(results: Mapping[str, Sequence[Result]]) -> tuple[str, ...]:
  """Describes how the results of one table, by the model's name, differ.

  There is a sentence for each model whose results are of several checkpoints or
  training runs, for each relevance level above 1, and for each BM25. Models of
  a grid, whose results are of a run each, have one for all of them.
  """
  notes = []

  def values(group: Sequence[Result], name: str) -> list[Any]:
    # Results without a step or run may be of the others'.
    return sorted({r.provenance[name] for r in group if r.provenance.get(name)})

  anew = [
      name for name, group in results.items()
      if len(results) > 1 and len(values(group, 'run_id')) == len(group) > 1
  ]
  if anew:
    notes.append(f'Trained anew for each set: {", ".join(anew)}.')
  for name, group in results.items():
    model = f' of {name}' if len(results) > 1 else ''
    steps, runs = (values(group, n) for n in ('checkpoint_step', 'run_id'))
    if len(steps) > 1:
      words = ', '.join(f'{step:,}' for step in steps)
      notes.append(f'Figures{model} are of steps {words}.')
    if len(runs) > 1 and name not in anew:
      notes.append(f'Figures{model} are of {len(runs)} training runs.')
  every = [r.provenance for group in results.values() for r in group]
  for level in sorted({facts.get('relevance_level') or 1 for facts in every}):
    if level > 1:
      notes.append(
          f'Relevant are passages of grade {level} or more; the gains of nDCG'
          ' are the grades.'
      )
  notes += [f'{words}.' for words in map(describe_words, every) if words]
  return tuple(dict.fromkeys(notes))
