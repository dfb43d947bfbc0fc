"""The papers' tables, from the results of one or several models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import pathlib
from typing import Any

from dualenc_jax.evaluation.results import benchmarks
from dualenc_jax.evaluation.results.benchmarks import Benchmark, EvaluatedSet
from dualenc_jax.evaluation.results.result_files import Model, Result
from dualenc_jax.utils import table as table_lib
from dualenc_jax.utils.table import percents, percents_by_column, Row, Table

_OTHER_METRICS = (
    'P@1', 'MRR', 'MRR@10', 'nDCG@10', 'Recall@100',
    *benchmarks.OPEN_NQ_METRICS,
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
  tables = [_qa(models, qa), _beir(models, beir)]
  tables += [_open_nq(models, evaluated) for evaluated in open_nq]
  tables.append(_other(models, other))
  return [table for table in tables if table.rows]


def metric_lines(systems: Mapping[str, Mapping[str, float]]) -> str:
  """Metrics by line for a terminal, a column a system; '' has no name."""
  lines = []
  if any(systems):
    lines.append(f'  {"":<12}' + ''.join(f'{name:>10}' for name in systems))
  for metric in next(iter(systems.values())):
    values = [own.get(metric) for own in systems.values()]
    cells = ['' if value is None else f'{value:.4f}' for value in values]
    lines.append(f'  {metric:<12}' + ''.join(f'{cell:>10}' for cell in cells))
  return '\n'.join(lines)


def size(facts: Mapping[str, Any]) -> str:
  """'500 queries over 472 passages'; '' where facts do not say."""
  queries, passages = facts.get('queries'), facts.get('passages')
  if queries is None or passages is None:
    return ''
  return f'{queries:,} queries over {passages:,} passages'


def describe_words(facts: Mapping[str, Any]) -> str:
  """'BM25: k1 1.5, b 0.75, language english'; '' where it has no part."""
  if 'k1' not in facts:
    return ''
  own = {n: facts[n] for n in ('weight', 'k1', 'b', 'language') if n in facts}
  told = (f'{n} {"none" if v is None else v}' for n, v in own.items())
  return f'{"Hybrid" if "weight" in own else "BM25"}: {", ".join(told)}'


def _qa(models: _Models, sets: _Sets) -> Table:
  metrics = benchmarks.QA_METRICS
  models = _with_any(models, sets, metrics)
  averaged, name, note = _averaged(
      models, sets, metrics, benchmarks.QA_NAMES, "SamToNe's table 1"
  )
  columns = [(s.name, metric) for s in sets for metric in metrics]
  columns += [(name, metric) for metric in metrics if averaged]
  values = [
      [s.value(model, metric) for s in sets for metric in metrics]
      + [_mean(averaged, model, metric) for metric in metrics if averaged]
      for model in models
  ]
  rows = zip(models, percents_by_column(values))
  return Table(
      name='qa-retrieval',
      title='Precision at 1 (P@1) (%) and mean reciprocal rank (MRR) (%) on QA'
      ' retrieval tasks',
      heads=('Model',),
      columns=tuple(columns),
      rows=tuple(Row((model.name,), cells) for model, cells in rows),
      notes=_notes(models, sets, metrics) + note,
  )


def _beir(models: _Models, sets: _Sets) -> Table:
  (metric,) = benchmarks.BEIR_METRICS
  models = _with_any(models, sets, [metric])
  averaged, name, note = _averaged(
      models, sets, [metric], benchmarks.BEIR_NAMES, 'BEIR'
  )
  rows = [
      Row((s.name,), percents([s.value(model, metric) for model in models]))
      for s in sets
  ]
  if averaged:
    means = [_mean(averaged, model, metric) for model in models]
    rows.append(Row((name,), percents(means), ruled=True))
  if 'CQADupStack' in {s.name for s in sets}:
    note += ('CQADupStack is the mean of its 12 parts.',)
  return Table(
      name='beir',
      title=f'{metric} (%) on the BEIR benchmark',
      heads=('Task',),
      columns=tuple(('', model.name) for model in models),
      rows=tuple(rows),
      notes=_notes(models, sets, [metric]) + note,
  )


def _open_nq(models: _Models, evaluated: EvaluatedSet) -> Table:
  metrics = _known(
      models, [evaluated], benchmarks.OPEN_NQ_METRICS + benchmarks.QA_METRICS
  )
  models = _with_any(models, [evaluated], metrics)
  rows = [
      Row((metric,), percents([evaluated.value(m, metric) for m in models]))
      for metric in metrics
  ]
  return Table(
      name=f'open-nq-{evaluated.split}',
      title='Retrieval accuracy (%) on open-domain Natural Questions'
      f' ({evaluated.split})',
      heads=('Metric',),
      columns=tuple(('', model.name) for model in models),
      rows=tuple(rows),
      notes=_notes(models, [evaluated], metrics),
  )


def _other(models: _Models, sets: _Sets) -> Table:
  metrics = _known(models, sets, _OTHER_METRICS)
  split = any(s.split for s in sets)
  rows: list[Row] = []
  for evaluated in sets:
    those = _with_any(models, [evaluated], metrics)
    cells = percents_by_column(
        [[evaluated.value(m, metric) for metric in metrics] for m in those]
    )
    what = (evaluated.name, *[evaluated.split] * split)
    for model, row in zip(those, cells):
      new = model is those[0] and bool(rows) and len(models) > 1
      rows.append(Row((*what, model.name), row, ruled=new))
  return Table(
      name='other',
      title='Retrieval metrics (%) by task and split',
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
  told = {
      f'{r.key}, {own}': None for r in results if (own := size(r.provenance))
  }
  if told:
    yield f'Measured: {"; ".join(told)}.'


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


def _averaged(
    models: _Models, sets: _Sets, metrics: Sequence[str], names: Sequence[str],
    whose: str,
) -> tuple[list[EvaluatedSet], str, tuple[str, ...]]:
  """The sets of the paper's average that all models have; none if only one.

  With them the average's heading, with their number if it is not the paper's,
  and a note on what it is over.
  """
  common = [
      s
      for s in sets
      if s.name in names
      and all(s.value(m, k) is not None for m in models for k in metrics)
  ]
  if len(common) < 2:
    return [], '', ()
  there = [s.name for s in common]
  missing = [name for name in names if name not in there]
  if not missing:
    note = f'The average is over the {len(names)} sets of {whose}.'
    return common, 'Average', (note,)
  return common, f'Average of {len(common)}', (
      f'The average is over {", ".join(there)} only, which all models have;'
      f' missing of the {len(names)} sets of {whose}: {", ".join(missing)}.',
  )


def _mean(sets: _Sets, model: Model, metric: str) -> float:
  return sum(s.value(model, metric) or 0 for s in sets) / len(sets)


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
  """What differs between results, by the model's name, of one table.

  A sentence for each model whose results are of several checkpoints or training
  runs, or of passages and of documents; none where all are alike. One for each
  grade beyond 1 from which passages are relevant, and for each BM25.
  """
  figures = (
      f'Figures{f" of {name}" if len(results) > 1 else ""} are of {what}.'
      for name, own in results.items()
      for what in _mixed(own)
  )
  every = [r for own in results.values() for r in own]
  levels = _by_value(every, lambda facts: facts.get('relevance_level') or 1)
  relevant = (
      f'Relevant{where} are passages of grade {level} or more; the gains of'
      ' nDCG are the grades.'
      for level, where in levels
      if level > 1
  )
  systems = _by_value(every, describe_words)
  words = (f'{told}{where}.' for told, where in systems if told)
  return *figures, *relevant, *words


def _by_value(
    results: Sequence[Result], value: Callable[[Mapping[str, Any]], Any]
) -> Iterator[tuple[Any, str]]:
  """What facts say, and ' on beir-nq test' if not of all sets."""
  sets: dict[Any, dict[str, None]] = {}
  for result in results:
    sets.setdefault(value(result.provenance), {})[str(result.key)] = None
  every = {str(result.key) for result in results}
  for found, names in sets.items():
    yield found, f' on {", ".join(names)}' * (len(names) < len(every))


def _mixed(results: Sequence[Result]) -> Iterator[str]:
  steps, runs, separators = (
      {result.provenance.get(fact) for result in results}
      for fact in ('checkpoint_step', 'run_id', 'document_separator')
  )
  # A result without its step or run may be of the others'.
  if len(known := sorted(filter(None, steps))) > 1:
    yield f'steps {_listed([f"{step:,}" for step in known])}'
  if len(runs - {None}) > 1:
    yield f'{len(runs - {None})} training runs'
  if len(separators) > 1:
    documents = sorted(filter(None, separators))
    names = [f'documents (ids up to {s!r})' for s in documents]
    yield _listed([*['passages'] * (None in separators), *names])


def _listed(words: Sequence[str]) -> str:
  """'a, b and c'."""
  *first, last = words
  return f'{", ".join(first)} and {last}'
