"""The files of a comparison: tables, CSV, JSON and figures."""

from collections.abc import Iterable, Iterator, Sequence
import csv
import dataclasses
import io
import json
import pathlib
from typing import Any

from dualenc_jax.evaluation.results import benchmarks, tables
from dualenc_jax.evaluation.results.benchmarks import EvaluatedSet
from dualenc_jax.evaluation.results.comparison import Comparison, Difference
from dualenc_jax.evaluation.results.folder import (
  describe_copies,
  describe_seen,
  Model,
  SEEN,
)
from dualenc_jax.evaluation.results.newest import outdated
from dualenc_jax.utils import files, table as table_lib
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

_NAMED = 5  # Results that are left out, the others are only counted.
# Sets by metrics that one table of all models has room for.
_SIDE_BY_SIDE = 4
# p below which a difference is marked.
_LEVEL = 0.05


def comparison_tables(comparison: Comparison) -> list[Table]:
  """A table for each model: it against the baseline, by set and metric.

  In front of several, of few sets, is one of all.
  """
  found = [
      _table(comparison, model, number)
      for number, model in enumerate(comparison.models, start=1)
  ]
  several = len(found) > 1
  if several and len(comparison.differences) <= _SIDE_BY_SIDE * len(found):
    found.insert(0, _all_models(comparison))
  return found


def narrow_table(comparison: Comparison) -> Table:
  """All models by set and metric, with the one test of them, in few columns."""
  baseline, *others = comparison.baseline, *comparison.models
  several = len(others) > 1
  columns = [m.name for m in (baseline, *others)]
  columns += [] if several else ['difference', 'p']
  lines = []
  for own in _by_place(comparison):
    cells = [_percent(own[0].baseline_value) + ' ' * several]
    if several:
      marks = ('*' if d.randomization_holm < _LEVEL else ' ' for d in own)
      cells += [_percent(d.value) + mark for d, mark in zip(own, marks)]
    else:
      (d,) = own
      cells += [_percent(d.value), f'{100 * d.difference:+.2f}']
      cells.append(_p(d.randomization_holm).text)
    lines.append((own[0], map(Cell, cells)))
  which = f'* p < {_LEVEL} against {baseline.name}' if several else 'p'
  notes = [
      f'{which}: two-sided paired randomization test over queries, corrected'
      ' for all tasks and models by the same metric. --wide prints all tests.',
      *_scope_notes(comparison),
  ]
  sizes = _sizes(comparison)
  if any(map(any, sizes.values())):
    found = (f'{name} {_bytes(size).text}' for name, size in sizes.items())
    notes.append(f'Bytes of a passage in the index: {", ".join(found)}.')
  for model in others:
    notes += _notes_on(comparison, model)
  return _by_task(
      'comparison', comparison, 'All' if several else others[0].name,
      [('', name) for name in columns], lines, dict.fromkeys(notes),
  )


def _by_place(comparison: Comparison) -> list[list[Difference]]:
  """All models' differences by set and metric."""
  places: dict[tuple[EvaluatedSet, str], list[Difference]] = {}
  for d in comparison.differences:
    places.setdefault((d.evaluated, d.metric), []).append(d)
  return list(places.values())


def _by_task(
    name: str, comparison: Comparison, who: str,
    columns: Sequence[tuple[str, str]],
    lines: Sequence[tuple[Difference, Iterator[Cell]]], notes: Iterable[str],
) -> Table:
  """A table with a row for each task and metric, ruled between tasks."""
  sets = [d.evaluated for d, _ in lines]
  split = any(evaluated.split for evaluated in sets)
  rows: list[Row] = []
  for task, (d, cells) in zip(benchmarks.task_names(sets), lines):
    heads = (task, *[d.evaluated.split] * split, d.metric)
    new = bool(rows) and d.evaluated != sets[len(rows) - 1]
    rows.append(Row(heads, tuple(cells), ruled=new))
  title = f'{who} against {comparison.baseline.name} (%)'
  heads = ('Task', *['Split'] * split, 'Metric')
  return Table(name, title, heads, tuple(columns), tuple(rows), tuple(notes))


def _sizes(comparison: Comparison) -> dict[str, list[int]]:
  """By model the bytes of a passage on its sets, 0 without a codec."""
  keys = [k for d in comparison.differences for k in d.evaluated.keys]
  facts = {
      m.name: [m.results[k].provenance for k in keys]
      for m in (comparison.baseline, *comparison.models)
  }
  return {
      name: sorted({fact.get('bytes_per_passage') or 0 for fact in own})
      for name, own in facts.items()
  }


def write_comparison(folder: pathlib.Path, comparison: Comparison) -> list[str]:
  """Writes all files but the figures; the same comparison gives the same bytes.

  comparison.json, .csv, .md and .tex, and the papers' tables of all models in
  tables.md and tables.tex. Returns their names.
  """
  files.make_folder(folder)
  rows = [_row(d) for d in comparison.differences]
  content = io.StringIO()
  writer = csv.DictWriter(content, rows[0], lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  models = [comparison.baseline, *comparison.models]
  value = {
      'baseline': _described(models[0], comparison),
      'models': [_described(m, comparison) for m in models[1:]],
      'options': dataclasses.asdict(comparison.options),
      'differences': rows,
      'left_out': list(map(str, comparison.left_out)),
  }
  contents = {
      'comparison.json': json.dumps(value, indent=2, ensure_ascii=False) + '\n',
      'comparison.csv': content.getvalue(),
  }
  for name, text in contents.items():
    files.write(folder / name, text)
  return [
      *contents,
      *table_lib.write(folder, 'comparison', comparison_tables(comparison)),
      *tables.write_tables(folder, models),
  ]


def _all_models(comparison: Comparison) -> Table:
  """Values and p of all models, and the bytes of a passage by their codecs."""
  models = comparison.baseline, *comparison.models
  sizes = _sizes(comparison).values()
  known = any(map(any, sizes))
  columns = [('', 'bytes')] * known
  cells = [[_bytes(size)] * known for size in sizes]
  for found in _by_place(comparison):
    first = found[0]
    split = first.evaluated.split
    # Of sets of one name it has the split already.
    group = f'{first.set_name.removesuffix(f" {split}")} {split}'.strip()
    columns += [(group, first.metric), (group, 'p, Holm')]
    values = [first.baseline_value, *(d.value for d in found)]
    tests = [None, *(d.randomization_holm for d in found)]
    for own, value, p in zip(cells, values, tests):
      best = value == max(values) > min(values)
      own += [Cell(_percent(value), best), _p(p)]
  return Table(
      name='comparison-all',
      title=f'All against {comparison.baseline.name} (%)',
      heads=('Model',),
      columns=tuple(columns),
      rows=tuple(Row((m.name,), tuple(c)) for m, c in zip(models, cells)),
      notes=(
          'p: paired randomization test over queries, corrected for all models'
          ' and tasks by the same metric.',
          *[
              'Bytes: of a passage in the index, by its codec;'
              f' {MISSING} for embeddings without one.'
          ] * known,
          *_scope_notes(comparison),
      ),
  )


def _percent(value: float) -> str:
  return f'{100 * value:.2f}'


def _bytes(sizes: Sequence[int]) -> Cell:
  """All sizes of a model, which are one unless its sets had other codecs."""
  return Cell(' / '.join(f'{size:,}' if size else MISSING for size in sizes))


def _p(p: float | None) -> Cell:
  if p is None:
    return Cell(MISSING)
  return Cell('<0.0001' if p < 0.0001 else f'{p:.4f}')


def _table(comparison: Comparison, model: Model, number: int) -> Table:
  own = [d for d in comparison.differences if d.model == model.name]
  names = [comparison.baseline.name, model.name, 'difference', 'relative']
  columns = [('', name) for name in (*names, 'better/equal/worse')]
  columns += [
      (test, p) for test in ('t-test', 'randomization') for p in ('p', 'Holm')
  ]
  options = comparison.options
  notes = [
      'Two-sided paired tests over queries; randomization with'
      f' {options.permutations:,} permutations, exact where few queries differ.'
      ' Holm: corrected for all tasks and models by the same metric.'
  ]
  if any(d.t_test is None for d in comparison.differences):
    notes.append(
        f'The t-test does not apply ({MISSING}) where all queries differ by the'
        ' same: it has no variance to judge by.'
    )
  notes += [*_scope_notes(comparison), *_notes_on(comparison, model)]
  return _by_task(
      f'comparison-{number}', comparison, model.name, columns,
      [(d, _cells(d)) for d in own], notes,
  )


def _cells(d: Difference) -> Iterator[Cell]:
  both = (d.baseline_value, d.value)
  for value in both:
    yield Cell(_percent(value), value == max(both) > min(both))
  yield Cell(f'{100 * d.difference:+.2f}')
  yield Cell(MISSING if d.relative is None else f'{100 * d.relative:+.1f}%')
  yield Cell(f'{d.better:,}/{d.equal:,}/{d.worse:,}')
  for p in (d.t_test, d.t_test_holm, d.randomization, d.randomization_holm):
    yield _p(p)


def _scope_notes(comparison: Comparison) -> Iterator[str]:
  """What the figures are of."""
  if comparison.options.common_queries:
    yield 'Only over queries that both have.'
  sets = [d.evaluated for d in comparison.differences]
  for name in sorted({s.name for s in sets if len(s.keys) > 1}):
    yield f'{name} is the mean of its parts.'
  if comparison.left_out:
    first = list(map(str, comparison.left_out[:_NAMED]))
    more = len(comparison.left_out) - len(first)
    first += [f'and {more} more'] if more else []
    yield (
        'Left out, since not all have them or these metrics of them:'
        f' {", ".join(first)}.'
    )


def _notes_on(comparison: Comparison, model: Model) -> Iterator[str]:
  """What the two models' results do not have in common, or each in its own."""
  baseline = comparison.baseline
  own = [d for d in comparison.differences if d.model == model.name]
  names = {key: d.set_name for d in own for key in d.evaluated.keys}
  sets: dict[tuple[str, ...], dict[str, None]] = {}
  for key, name in names.items():
    facts = [m.results[key].provenance for m in (baseline, model)]
    dtypes = tuple(fact.get('embedding_dtype') or 'float32' for fact in facts)
    sets.setdefault(dtypes, {})[name] = None
  for (one, other), of in sets.items():
    if one != other:
      yield (
          f'Passages are ranked by {one} embeddings of {baseline.name} and'
          f' {other} ones of {model.name} on {", ".join(of)}.'
      )
  for key, name in names.items():
    for each in (baseline, model):
      if counts := each.results[key].provenance.get(SEEN):
        yield f'{each.name} on {name}: {describe_seen(counts)}'
      if what := outdated(each.results[key]):
        yield f'{each.name} on {name} is {what}: evaluate it again.'
    if copies := describe_copies(baseline.results[key].provenance):
      yield f'{name}: {copies}'
  yield from tables.mixed_notes(
      {m.name: [m.results[key] for key in names] for m in (baseline, model)}
  )


def _row(d: Difference) -> dict[str, Any]:
  return {
      'task': d.set_name,
      'label': ' '.join(key.label for key in d.evaluated.keys),
      'split': d.evaluated.split,
      'metric': d.metric,
      'model': d.model,
      'baseline_value': d.baseline_value,
      'value': d.value,
      'difference': d.difference,
      'relative_improvement': d.relative,
      'queries': d.queries,
      'better': d.better,
      'equal': d.equal,
      'worse': d.worse,
      't_test_p': d.t_test,
      't_test_p_holm': d.t_test_holm,
      'randomization_p': d.randomization,
      'randomization_p_holm': d.randomization_holm,
  }


def _described(model: Model, comparison: Comparison) -> dict[str, Any]:
  """A model, and what each of its numbers depends on."""
  compared = {key for d in comparison.differences for key in d.evaluated.keys}
  return {
      'name': model.name,
      'where': model.where,
      'results': {
          str(key): dict(model.results[key].provenance)
          for key in sorted(compared, key=str)
      },
  }
