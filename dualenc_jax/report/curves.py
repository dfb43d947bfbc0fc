"""Training curves: metrics.jsonl, and the section of charts."""

from collections.abc import Mapping
import math
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.figures import figure
from dualenc_jax.io import json_file, untrusted
from dualenc_jax.io.json_file import check
from dualenc_jax.report.markup import folded, Html, precise, section, tag

# Values by step, ascending, by '<group>/<name>'.
Curves = Mapping[str, Mapping[int, float]]

_CHARTS = {
    'Loss': ['train/loss', 'train/chance'],
    'Validation': [
        f'validation/{name}'
        for name in ('P@1', 'MRR', 'nDCG@10', 'Recall@10', 'Recall@100')
    ],
    'Log-likelihood of a token, validation': ['validation/log_likelihood'],
    'In-batch accuracy': ['train/accuracy'],
    'Mean cosines of a batch': [
        f'train/{pair}_similarity'
        for pair in (
            'positive',
            'query_passage',
            'query_query',
            'passage_passage',
        )
    ],
    'Effective rank of the embeddings': [
        f'train/{tower}_rank' for tower in ('query', 'passage')
    ],
    'Spread of the embeddings, 0 to 1': [
        f'train/{tower}_spread' for tower in ('query', 'passage')
    ],
    'Divergence of the towers, on queries': [
        f'alignment/{name}' for name in ('kl', 'kl_reverse', 'kl_limit')
    ],
    'Gradient norm': ['train/gradient_norm'],
    'Learning rate': ['train/learning_rate'],
    'Examples per second': ['train/examples_per_second'],
    'Memory, MiB': ['resources/host_mib', 'resources/device_mib'],
    'Share of waiting for data': ['resources/waiting_for_data'],
}
_INCHES = (4.3, 2.3)
# Colours of the drawing, to which the style sheet gives others in the dark.
_COLOURS = ('#0b6a75', '#c2571a', '#6a4fb3', '#4b7a1e', '#b0327a')
# Of the first runs, and of those for which there is no other colour.
_STYLES = ('-', (0, (4, 2)))
# Curves this long get a line of means on top of the values.
_SMOOTHED = 100
# A drawing has so many stretches of a curve, each with both of its extremes.
_STRETCHES = 250
# Bytes of the file.
_LARGEST = 2**30
# A curve with values so many times its median has a logarithmic axis.
_SPIKY = 50


def read(path: pathlib.Path) -> tuple[Curves, list[str]]:
  """Reads the numbers that training wrote, one JSON object a line.

  Returns:
    The curves, and a sentence on damage if there is any. A last line that is
    not whole is no damage: a run may be writing it, or was stopped there.
  """
  try:
    lines = untrusted.read(path, _LARGEST).split(b'\n')
  except FileNotFoundError:
    return {}, []
  except UserError as e:
    return {}, [str(e)]
  except OSError as e:
    return {}, [f'{path} cannot be read: {e.strerror or e}.']
  found: dict[str, dict[int, float]] = {}
  bad = []
  for number, line in enumerate(lines, 1):
    try:
      values = json_file.loads(line)
      check(values, {'step': int, 'group': str}, '')
      step, group = values.pop('step'), values.pop('group')
      check(values, {str: int | float | None}, '')
    except ValueError:
      if number < len(lines):
        bad.append(number)
      continue
    for name, value in values.items():
      value = math.nan if value is None else float(value)
      found.setdefault(f'{group}/{name}', {})[step] = value
  problems = [
      f'{path} is damaged in {len(bad):,} of {len(lines) - 1:,} lines, first in'
      f' line {bad[0]:,}. They are left out.'
  ] if bad else []
  return dict(sorted(found.items())), problems


def render(
    curves: Curves, name: str = '', others: Mapping[str, Curves] = {}
) -> Html:
  """The section; nothing of it if there are no curves.

  Args:
    curves: of the model.
    name: of it, where it has others beside it.
    others: curves of other runs by name, to be drawn in the same charts, one
      for each metric then.
  """
  runs = {name: curves, **others}
  taken = {metric for metrics in _CHARTS.values() for metric in metrics}
  own = {m: [m] for run in runs.values() for m in run if m not in taken}
  groups = [_each_alone(_CHARTS) if others else _CHARTS, own]
  try:
    charts, more = (
        [c for item in group.items() if (c := _chart(*item, runs))]
        for group in groups
    )
  except ImportError:
    advice = "pip install 'dualenc-jax[plots]'"
    note = f'No curves without matplotlib: {advice}.'
    return section('curves', 'Training', tag('p', note, class_='note'))
  parts = [tag('div', *charts, class_='charts')] if charts else []
  steps = [len(line) for run in runs.values() for line in run.values()]
  if max(steps, default=0) >= _SMOOTHED:
    note = 'Thin lines are single values, bold ones means over a 50th of them.'
    parts.insert(0, tag('p', note, class_='note'))
  if more:
    title = f'{len(more)} more curve{"s" * (len(more) > 1)}'
    parts.append(folded(title, tag('div', *more, class_='charts')))
  return section('curves', 'Training', *parts)


def _each_alone(charts: Mapping[str, list[str]]) -> dict[str, list[str]]:
  """Charts of one metric each, named after it where they were of several."""
  return {
      f'{title}: {_words(metric)}' if metrics[1:] else title: [metric]
      for title, metrics in charts.items()
      for metric in metrics
  }


def _words(metric: str) -> str:
  return metric.partition('/')[2].replace('_', ' ')


def _chart(
    title: str, metrics: list[str], runs: Mapping[str, Curves]
) -> Html | None:
  """A chart with its title and legend; None without a finite number."""
  lines, lost = {}, 0
  for run, curves in runs.items():
    for metric in metrics:
      values = curves.get(metric, {})
      finite = {s: v for s, v in values.items() if math.isfinite(v)}
      lost += len(values) - len(finite)
      if finite:
        label = run if len(runs) > 1 else _words(metric)
        lines[label] = np.array(list(finite)), np.array(list(finite.values()))
  if not lines:
    return None
  # A run has one colour in all charts, whether or not the others are there.
  places = {run: i for i, run in enumerate(runs)} if len(runs) > 1 else {}
  lines = {
      label: (*line, places.get(label, i))
      for i, (label, line) in enumerate(lines.items())
  }
  drawing = figure.svg(_INCHES, lambda canvas: _draw(canvas, lines))
  for number, colour in enumerate(_COLOURS):
    drawing = drawing.replace(colour, f'var(--s{number})')
  legend = [
      tag('li', *_extremes(label, steps, values), class_=_class(place))
      for label, (steps, values, place) in lines.items()
  ]
  note = f' {lost:,} values are not finite and left out' if lost else ''
  return tag(
      'figure',
      tag('figcaption', tag('b', title), tag('small', note)),
      Html(drawing),
      tag('ul', *legend, class_='legend'),
  )


def _class(place: int) -> str:
  again, number = divmod(place, len(_COLOURS))
  return f's{number}' + ' dashed' * (again % 2)


def _draw(canvas: Any, lines: Mapping[str, tuple]) -> None:
  axis = canvas.subplots()
  for steps, values, place in lines.values():
    again, number = divmod(place, len(_COLOURS))
    # Few values are seen as points.
    style = {
        'color': _COLOURS[number],
        'marker': '.' if len(steps) <= 30 else '',
        'linestyle': _STYLES[again % 2],
    }
    if len(steps) >= _SMOOTHED:
      axis.plot(*_thinned(steps, values), **style, linewidth=0.7, alpha=0.3)
      values = _smoothed(values, len(values) // 50)
    axis.plot(*_thinned(steps, values), **style, linewidth=1.4)
  everything = np.concatenate([values for _, values, _ in lines.values()])
  if everything.min() > 0 and everything.max() > _SPIKY * np.median(everything):
    axis.set_yscale('log')
  axis.locator_params(axis='x', nbins=4, integer=True)
  axis.xaxis.set_major_formatter(lambda step, _: f'{step:,.0f}')
  axis.grid(axis='y')
  axis.set_xlabel('step')


def _smoothed(values: np.ndarray, window: int) -> np.ndarray:
  """Means [n] over `window` neighbours of each value, fewer at the ends."""
  ones = np.ones(window)
  counts = np.convolve(np.ones(len(values)), ones, 'same')
  return np.convolve(values, ones, 'same') / counts


def _thinned(
    steps: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Both ends, and the lowest and highest of each of 250 stretches."""
  if len(steps) <= 2 * _STRETCHES:
    return steps, values
  keep = {0, len(steps) - 1}
  for part in np.array_split(np.arange(len(steps)), _STRETCHES):
    keep |= {part[values[part].argmin()], part[values[part].argmax()]}
  rows = np.array(sorted(keep))
  return steps[rows], values[rows]


def _extremes(name: str, steps: np.ndarray, values: np.ndarray) -> list[str]:
  low, high = values.argmin(), values.argmax()
  return [
      f'{name}: ',
      tag('b', precise(values[-1])),
      f' at step {steps[-1]:,}, lowest {precise(values[low])} at'
      f' {steps[low]:,}, highest {precise(values[high])} at {steps[high]:,}',
  ]
