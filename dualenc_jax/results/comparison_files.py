"""A comparison as tables, CSV and JSON, and the folder of all of it."""

from collections.abc import Iterator, Sequence
import csv
import dataclasses
import io
import json
import pathlib
from typing import Any

from dualenc_jax.figures import table as table_lib
from dualenc_jax.figures.table import Cell, MISSING, Row, Table
from dualenc_jax.io import files
from dualenc_jax.results import benchmarks, seen, tables
from dualenc_jax.results.benchmarks import EvaluatedSet
from dualenc_jax.results.comparison import Comparison, Difference
from dualenc_jax.results.folder import Key, Model

_NAMED = 5  # Results that are left out, the others are only counted.
_BYTES = 'bytes_per_passage'
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
  places: dict[tuple[EvaluatedSet, str], list[Difference]] = {}
  for d in comparison.differences:
    places.setdefault((d.evaluated, d.metric), []).append(d)
  sets = [evaluated for evaluated, _ in places]
  split = any(evaluated.split for evaluated in sets)
  several = len(others) > 1
  columns = [m.name for m in (baseline, *others)]
  columns += [] if several else ['difference', 'p']
  rows = []
  for name, ((evaluated, metric), own) in zip(
      benchmarks.task_names(sets), places.items()
  ):
    cells = [f'{100 * own[0].baseline_value:.2f}']
    if several:
      cells[0] += ' '
      cells += [f'{100 * d.value:.2f}{_mark(d)}' for d in own]
    else:
      (d,) = own
      cells += [f'{100 * d.value:.2f}', f'{100 * d.difference:+.2f}']
      cells.append(_p(d.randomization_holm).text)
    place = name, *([evaluated.split] if split else []), metric
    rows.append(Row(place, tuple(map(Cell, cells))))
  which = 'p' if not several else f'* p < {_LEVEL} against {baseline.name}'
  notes = [
      f'{which}: two-sided paired randomization test over queries, corrected'
      ' for all tasks and models by the same metric. --wide prints all tests.',
      *_scope_notes(comparison),
      *_bytes_notes(comparison),
  ]
  for model in others:
    own = [d for d in comparison.differences if d.model == model.name]
    notes += _notes_on(baseline, model, own)
  return Table(
      name='comparison',
      title=f'{"All" if several else others[0].name} against'
      f' {baseline.name} (%)',
      heads=('Task', *(['Split'] if split else []), 'Metric'),
      columns=tuple(('', name) for name in columns),
      rows=tuple(rows),
      notes=tuple(dict.fromkeys(notes)),
  )


def _mark(d: Difference) -> str:
  return '*' if d.randomization_holm < _LEVEL else ' '


def _bytes_notes(comparison: Comparison) -> Iterator[str]:
  """Of a passage by each model's codec, if any has one."""
  sizes = _sizes(comparison)
  if any(map(any, sizes.values())):
    found = (f'{name} {_bytes(size).text}' for name, size in sizes.items())
    yield f'Bytes of a passage in the index: {", ".join(found)}.'


def _sizes(comparison: Comparison) -> dict[str, list[int]]:
  """By model the bytes of a passage on its sets, 0 without a codec."""
  keys = [k for d in comparison.differences for k in d.evaluated.keys]
  return {
      m.name: sorted({m.results[k].provenance.get(_BYTES) or 0 for k in keys})
      for m in (comparison.baseline, *comparison.models)
  }


def write_comparison(folder: pathlib.Path, comparison: Comparison) -> list[str]:
  """Writes all files but the figures; the same comparison gives the same bytes.

  comparison.json, .csv, .md and .tex, and the papers' tables of all models in
  tables.md and tables.tex.

  Returns:
    The names of the files.

  Raises:
    UserError: the folder cannot be written.
  """
  files.make_folder(folder)
  contents = {
      'comparison.json': _json(comparison),
      'comparison.csv': _csv(comparison),
  }
  for name, content in contents.items():
    files.write(folder / name, content)
  return [
      *contents,
      *table_lib.write(folder, 'comparison', comparison_tables(comparison)),
      *tables.write_tables(folder, [comparison.baseline, *comparison.models]),
  ]


def _all_models(comparison: Comparison) -> Table:
  """Values and p of all models, and the bytes of a passage by their codecs."""
  by_place: dict[tuple[str, str, str], list[Difference]] = {}
  for d in comparison.differences:
    place = d.set_name, d.evaluated.split, d.metric
    by_place.setdefault(place, []).append(d)
  models = comparison.baseline, *comparison.models
  sizes = _sizes(comparison).values()
  known = any(map(any, sizes))
  columns = [('', 'bytes')] if known else []
  cells = [[_bytes(size)] if known else [] for size in sizes]
  for (name, split, metric), found in by_place.items():
    group = ' '.join(filter(None, (name, split)))
    columns += [(group, metric), (group, 'p, Holm')]
    values = [found[0].baseline_value, *(d.value for d in found)]
    tests = [None, *(d.randomization_holm for d in found)]
    for own, value, p in zip(cells, values, tests):
      best = value == max(values) > min(values)
      own += [Cell(f'{100 * value:.2f}', best), _p(p)]
  return Table(
      name='comparison-all',
      title=f'All against {comparison.baseline.name} (%)',
      heads=('Model',),
      columns=tuple(columns),
      rows=tuple(Row((m.name,), tuple(c)) for m, c in zip(models, cells)),
      notes=(
          'p: paired randomization test over queries, corrected for all models'
          ' and tasks by the same metric. Bytes: of a passage in the index, by'
          f' its codec; {MISSING} for embeddings without one.',
      ),
  )


def _bytes(sizes: Sequence[int]) -> Cell:
  """All sizes of a model, which are one unless its sets had other codecs."""
  return Cell(' / '.join(f'{size:,}' if size else MISSING for size in sizes))


def _p(p: float | None) -> Cell:
  shown = MISSING if p is None else f'{p:.4f}'
  return Cell('<0.0001' if p is not None and p < 0.0001 else shown)


def _table(comparison: Comparison, model: Model, number: int) -> Table:
  own = [d for d in comparison.differences if d.model == model.name]
  split = any(d.evaluated.split for d in own)
  names = [comparison.baseline.name, model.name, 'difference', 'relative']
  columns = [('', name) for name in (*names, 'better/equal/worse')]
  for test in ('t-test', 'randomization'):
    columns += [(test, 'p'), (test, 'Holm')]
  sets = [d.evaluated for d in own]
  rows = []
  for d, name in zip(own, benchmarks.task_names(sets)):
    heads = (name, *([d.evaluated.split] if split else []), d.metric)
    new = bool(rows) and d.evaluated != sets[len(rows) - 1]
    rows.append(Row(heads, tuple(_cells(d)), ruled=new))
  return Table(
      name=f'comparison-{number}',
      title=f'{model.name} against {comparison.baseline.name} (%)',
      heads=('Task', *(['Split'] if split else []), 'Metric'),
      columns=tuple(columns),
      rows=tuple(rows),
      notes=(*_notes(comparison), *_notes_on(comparison.baseline, model, own)),
  )


def _cells(d: Difference) -> Iterator[Cell]:
  both = (d.baseline_value, d.value)
  for value in both:
    yield Cell(f'{100 * value:.2f}', value == max(both) > min(both))
  yield Cell(f'{100 * d.difference:+.2f}')
  relative = MISSING if d.relative is None else f'{100 * d.relative:+.1f}%'
  yield Cell(relative)
  yield Cell(f'{d.better:,}/{d.equal:,}/{d.worse:,}')
  for p in (d.t_test, d.t_test_holm, d.randomization, d.randomization_holm):
    yield _p(p)


def _notes(comparison: Comparison) -> Iterator[str]:
  options = comparison.options
  yield (
      'Two-sided paired tests over queries; randomization with'
      f' {options.permutations:,} permutations, exact where few queries differ.'
      ' Holm: corrected for all tasks and models by the same metric.'
  )
  if any(d.t_test is None for d in comparison.differences):
    yield (
        f'The t-test does not apply ({MISSING}) where all queries differ by the'
        ' same: it has no variance to judge by.'
    )
  yield from _scope_notes(comparison)


def _scope_notes(comparison: Comparison) -> Iterator[str]:
  """Of what the figures are."""
  levels = {
      result.provenance.get('relevance_level')
      for result in comparison.baseline.results.values()
  }
  for level in levels - {None}:
    yield (
        f'Relevant are passages of grade {level} or more; the gains of nDCG are'
        ' the grades.'
    )
  if comparison.options.common_queries:
    yield 'Only over queries that both have.'
  merged = {
      d.evaluated.name for d in comparison.differences if d.evaluated.keys[1:]
  }
  for name in sorted(merged):
    yield f'{name} is the mean of its parts.'
  if comparison.left_out:
    first = [str(key) for key in comparison.left_out[:_NAMED]]
    more = len(comparison.left_out) - len(first)
    first += [f'and {more} more'] if more else []
    yield (
        'Left out, since not all have them or these metrics of them:'
        f' {", ".join(first)}.'
    )


def _notes_on(
    baseline: Model, model: Model, own: Sequence[Difference]
) -> Iterator[str]:
  """What the two models' results do not have in common, or each in its own."""
  names = {key: d.set_name for d in own for key in d.evaluated.keys}
  sets: dict[tuple[str, str], dict[str, None]] = {}
  for key, name in names.items():
    dtypes = (_embedding_dtype(baseline, key), _embedding_dtype(model, key))
    sets.setdefault(dtypes, {})[name] = None
  for (one, other), of in sets.items():
    if one != other:
      yield (
          f'Passages are ranked by {one} embeddings of {baseline.name} and'
          f' {other} ones of {model.name} on {", ".join(of)}.'
      )
  for key, name in names.items():
    for each in (baseline, model):
      if found := each.results[key].provenance.get(seen.FACT):
        yield f'{each.name} on {name}: {seen.describe(found)}'
  yield from tables.mixed_notes(
      {m.name: [m.results[key] for key in names] for m in (baseline, model)}
  )


def _embedding_dtype(model: Model, key: Key) -> str:
  return model.results[key].provenance.get('embedding_dtype') or 'float32'


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


def _csv(comparison: Comparison) -> str:
  rows = [_row(d) for d in comparison.differences]
  file = io.StringIO()
  writer = csv.DictWriter(file, rows[0], lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return file.getvalue()


def _json(comparison: Comparison) -> str:
  content = {
      'baseline': _described(comparison.baseline, comparison),
      'models': [_described(m, comparison) for m in comparison.models],
      'options': dataclasses.asdict(comparison.options),
      'differences': [_row(d) for d in comparison.differences],
      'left_out': list(map(str, comparison.left_out)),
  }
  return json.dumps(content, indent=2, ensure_ascii=False) + '\n'


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
