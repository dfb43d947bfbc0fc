"""The files of a comparison: a table, CSV, JSON and figures."""

from collections.abc import Iterator, Sequence
import json
import pathlib
import re
from typing import Any

from dualenc_jax.evaluation.results import tables
from dualenc_jax.evaluation.results.comparison import Comparison, Difference
from dualenc_jax.evaluation.results.result_files import (
  describe_copies,
  describe_outdated,
  Model,
)
from dualenc_jax.utils import figure as figure_lib, files, table as table_lib
from dualenc_jax.utils.figure import Figure, fit_text
from dualenc_jax.utils.table import Cell, Row, Table

# p below which a difference is marked.
_LEVEL = 0.05
_GREY = '#8a8a8a'
_FAINT = 0.35  # Opacity of a bar that may be chance.


def make_table(comparison: Comparison) -> Table:
  """All models by set and metric, with the randomization test."""
  baseline, *others = comparison.baseline, *comparison.models
  several = len(others) > 1
  columns = [model.name for model in (baseline, *others)]
  columns += [] if several else ['difference', 'p']
  places: dict[tuple[str, str], list[Difference]] = {}
  for d in comparison.differences:
    places.setdefault((d.set_name, d.metric), []).append(d)
  rows: list[Row] = []
  for heads, group in places.items():
    d = group[0]
    cells = [_percent(d.baseline_value)]
    if several:
      marks = ('*' if d.p_holm < _LEVEL else ' ' for d in group)
      cells = [f'{cells[0]} ']
      cells += [_percent(d.value) + mark for d, mark in zip(group, marks)]
    else:
      p = d.p_holm
      cells += [_percent(d.value), f'{100 * d.difference:+.2f}']
      cells.append('<0.0001' if p < 0.0001 else f'{p:.4f}')
    new = bool(rows) and heads[0] != rows[-1].heads[0]
    rows.append(Row(heads, tuple(map(Cell, cells)), ruled=new))
  return Table(
      'comparison',
      f'{"All" if several else others[0].name} against {baseline.name} (%)',
      ('Task', 'Metric'),
      tuple(('', name) for name in columns),
      tuple(rows),
      tuple(dict.fromkeys(_notes(comparison))),
  )


def write_comparison(folder: pathlib.Path, comparison: Comparison) -> list[str]:
  """Writes all files but the figures; the same comparison gives the same bytes.

  comparison.json, .md and .tex, and the papers' tables of all models in
  tables.md and tables.tex. Returns their names.
  """
  files.make_folder(folder)
  rows = [_row(d) for d in comparison.differences]
  models = [comparison.baseline, *comparison.models]
  value = {
      'baseline': _describe_model(models[0], comparison),
      'models': [_describe_model(m, comparison) for m in models[1:]],
      'differences': rows,
      'left_out': list(comparison.left_out),
      'missing': list(comparison.missing),
  }
  content = json.dumps(value, indent=2, ensure_ascii=False) + '\n'
  files.write(folder / 'comparison.json', content)
  return [
      'comparison.json',
      *table_lib.write(folder, 'comparison', [make_table(comparison)]),
      *tables.write_tables(folder, models),
  ]


def write_figures(
    folder: pathlib.Path, comparison: Comparison, more: Sequence[Figure] = ()
) -> list[str]:
  """Writes a figure of the relative improvements for each metric, and others.

  It has the form of SamToNe's figure 4 and Dong 2022's figure 3. Sets with a
  baseline of 0 are left out. Returns the names of the files.

  Raises:
    ImportError: matplotlib is not installed.
  """
  known = [d for d in comparison.differences if d.relative is not None]
  saved = [
      figure_lib.save(
          _figure(comparison, metric, [d for d in known if d.metric == metric]),
          folder,
      )
      for metric in dict.fromkeys(d.metric for d in known)
  ]
  saved += [figure_lib.save(figure, folder) for figure in more]
  return [names[kind] for names in saved for kind in ('png', 'svg', 'csv')]


def _percent(value: float) -> str:
  return f'{100 * value:.2f}'


def _notes(comparison: Comparison) -> Iterator[str]:
  """Yields the test, the scope, and what differs between the results."""
  baseline, *others = comparison.baseline, *comparison.models
  mark = f'* p < {_LEVEL} against {baseline.name}' if others[1:] else 'p'
  yield (
      f'{mark}: two-sided paired randomization test over queries, corrected for'
      ' all tasks and models by the same metric.'
  )
  evaluated = [d.evaluated for d in comparison.differences]
  for name in sorted({s.name for s in evaluated if len(s.keys) > 1}):
    yield f'{name} is the mean of its parts.'
  if comparison.left_out:
    names = ', '.join(comparison.left_out)
    yield f'Left out, since not all have them or these metrics: {names}.'
  if comparison.missing:
    yield f'No results: {", ".join(comparison.missing)}.'
  sets = {
      key: d.set_name for d in comparison.differences
      for key in d.evaluated.keys
  }
  for model in (baseline, *others):
    for key, name in sets.items():
      facts = model.results[key].provenance
      if what := describe_outdated(model.results[key]):
        yield f'{model.name} on {name} is {what}: evaluate it again.'
      if copies := describe_copies(facts):
        yield f'{name}: {copies}'
  yield from tables.mixed_notes(
      {m.name: [m.results[key] for key in sets] for m in (baseline, *others)}
  )


def _row(d: Difference) -> dict[str, Any]:
  return {
      'task': d.set_name,
      'label': ' '.join(key.label for key in d.evaluated.keys),
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
      'p': d.p,
      'p_holm': d.p_holm,
  }


def _describe_model(model: Model, comparison: Comparison) -> dict[str, Any]:
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


def _figure(
    comparison: Comparison, metric: str, shown: Sequence[Difference]
) -> Figure:
  """Bars by set and model."""
  rows = [_row(d) for d in shown]
  words = f'improvement of {metric} over {comparison.baseline.name} (%)'
  sets = list(dict.fromkeys(d.set_name for d in shown))
  return Figure(
      name='relative_improvement_' + re.sub('[@-]', '_', metric.lower()),
      title=f'Relative {words}',
      caption=f'Relative {words} by set. Pale: may be chance (p \u2265'
      f' {_LEVEL}), by the randomization test with Holm correction.',
      columns={name: [row[name] for row in rows] for name in rows[0]},
      inches=(6.4, 1.2 + 0.18 * len(shown) + 0.09 * len(sets)),
      draw=lambda canvas: _draw(canvas, shown, sets, f'Relative {words}'),
  )


def _draw(
    canvas: Any, shown: Sequence[Difference], sets: Sequence[str], title: str
) -> None:
  axis = canvas.subplots()
  models = list(dict.fromkeys(d.model for d in shown))
  height = 0.68 / len(models)
  for number, model in enumerate(models):
    bars = [d for d in shown if d.model == model]
    offset = (number - (len(models) - 1) / 2) * height
    drawn = axis.barh(
        [sets.index(d.set_name) + offset for d in bars],
        [100 * (d.relative or 0) for d in bars],
        height,
        color=figure_lib.COLOURS[number % len(figure_lib.COLOURS)],
        label=fit_text(model),
    )
    for bar, d in zip(drawn, bars):
      bar.set_alpha(_FAINT if d.p_holm >= _LEVEL else None)
    axis.bar_label(drawn, fmt='{:+.1f}', padding=3, fontsize=8.5)
  axis.set_yticks(range(len(sets)), list(map(fit_text, sets)))
  axis.invert_yaxis()
  axis.axvline(0, color=_GREY, linewidth=0.8)
  # Room for the labels on both sides.
  axis.margins(x=0.12, y=0.02)
  axis.grid(axis='x')
  axis.spines[['left', 'bottom']].set_visible(False)
  axis.tick_params(length=0)
  axis.set_xlabel(f'pale: may be chance (p \u2265 {_LEVEL})')
  canvas.suptitle(fit_text(title, canvas.get_figwidth()), fontsize=11)
  canvas.legend(loc='outside lower left', ncols=min(len(models), 3))
