"""Training curves: metrics.jsonl, and the charts of them."""

from collections.abc import Mapping, Sequence
import functools
import math
import pathlib
import re
from typing import Any, NamedTuple

import markupsafe
import numpy as np

from dualenc_jax.utils import figure, json_file, untrusted

FILE = 'metrics.jsonl'
# Values by step, ascending, by '<group>/<name>'.
Curves = Mapping[str, Mapping[int, float]]

# Metrics of each chart: a group, and names.
_CHARTS = {
    'Loss': 'train loss chance',
    'Validation': 'validation P@1 MRR nDCG@10 Recall@10 Recall@100',
    'Mean cosines of a batch': 'train positive_similarity'
    ' query_passage_similarity query_query_similarity'
    ' passage_passage_similarity',
    'Effective rank of the embeddings': 'train query_rank passage_rank',
    'Divergence of the towers, on queries': 'alignment kl kl_reverse kl_limit',
    'Memory, MiB': 'resources host_mib device_mib',
}
_INCHES = (4.3, 2.3)
# The style sheet replaces these colours in the dark.
_COLOURS = ('#0b6a75', '#c2571a', '#6a4fb3', '#4b7a1e', '#b0327a')
# Stands for a colour of the page that a drawing is put into.
_PAGE = '#010203'
# A drawing has the means of so many stretches of a curve.
_STRETCHES = 250
_LARGEST = 2**30  # Bytes of the file.
# A curve with values so many times its median has a logarithmic axis.
_SPIKY = 50


def read(path: pathlib.Path) -> Curves:
  """Reads the numbers that training wrote, one JSON object a line.

  An incomplete last line is left out, as a run may be writing it.
  """
  if not path.exists():
    return {}
  *lines, _ = untrusted.read(path, _LARGEST).split(b'\n')
  by_name: dict[str, dict[int, float]] = {}
  for number, line in enumerate(lines, 1):
    values = json_file.parse(line, f'{path}, line {number}', 'Delete the line.')
    step, group = values.pop('step'), values.pop('group')
    for name, value in values.items():
      value = math.nan if value is None else float(value)
      by_name.setdefault(f'{group}/{name}', {})[step] = value
  return dict(sorted(by_name.items()))


class Line(NamedTuple):
  """The finite values of a metric in one run, drawn in a colour by number."""

  label: str
  colour: int
  steps: np.ndarray
  values: np.ndarray

  @property
  def ends(self) -> list[tuple[float, int]]:
    """Value and step of the last, the lowest and the highest."""
    rows = (-1, self.values.argmin(), self.values.argmax())
    return [(self.values[row], self.steps[row]) for row in rows]


class Chart(NamedTuple):
  """A drawing, with the number of values that are not finite."""

  title: str
  lost: int
  drawing: markupsafe.Markup
  lines: Sequence[Line]


def charts(runs: Mapping[str, Curves]) -> list[Chart]:
  """Charts of the known metrics, then of all others.

  Several runs are drawn over each other, in a chart for each metric.

  Raises:
    ImportError: matplotlib is not installed.
  """
  groups: dict[str, list[str]] = {}
  for title, words in _CHARTS.items() if len(runs) == 1 else ():
    group, *names = words.split()
    groups[title] = [f'{group}/{name}' for name in names]
  known = {metric for metrics in groups.values() for metric in metrics}
  groups |= {m: [m] for run in runs.values() for m in run if m not in known}
  return [chart for item in groups.items() if (chart := _chart(*item, runs))]


def _words(metric: str) -> str:
  if metric == 'train/chance':
    return 'chance, all candidates alike'
  return metric.partition('/')[2].replace('_', ' ')


def _chart(
    title: str, metrics: Sequence[str], runs: Mapping[str, Curves]
) -> Chart | None:
  """None without a finite number."""
  lines: list[Line] = []
  lost = 0
  for place, (run, curves) in enumerate(runs.items()):
    for metric in metrics:
      curve = curves.get(metric, {})
      finite = {step: v for step, v in curve.items() if math.isfinite(v)}
      lost += len(curve) - len(finite)
      if finite:
        # A run has one colour in all charts.
        several = len(runs) > 1
        colour = (place if several else len(lines)) % len(_COLOURS)
        label = run if several else _words(metric)
        steps, values = np.array(list(finite)), np.array(list(finite.values()))
        lines.append(Line(label, colour, steps, values))
  if not lines:
    return None
  drawing = _render(lines)
  for number, shade in enumerate(_COLOURS):
    drawing = drawing.replace(shade, f'var(--s{number})')
  return Chart(title, lost, markupsafe.Markup(drawing), lines)


def _render(lines: Sequence[Line]) -> str:
  """Curves as an <svg> element, as wide as its place, in the page's font."""
  page = ('text.color', 'axes.labelcolor', 'xtick.color', 'ytick.color')
  style = dict.fromkeys((*page, 'grid.color'), _PAGE) | {
      'svg.fonttype': 'none',
      'grid.alpha': 0.2,
      'savefig.transparent': True,
  }
  draw = functools.partial(_draw, lines=lines)
  drawing = figure.render(_INCHES, draw, ['svg'], style)['svg'].decode()
  drawing = drawing[drawing.index('<svg ') :].replace(_PAGE, 'currentColor')
  # Several drawings are in one page, each without sizes and ids.
  drawing = re.sub(r'<metadata>.*?</metadata>', '', drawing, flags=re.DOTALL)
  drawing = re.sub(r' (width|height)="[\d.]+pt"', '', drawing)
  drawing = re.sub(r'font-family: [^;]*', 'font-family: inherit', drawing)
  return re.sub(r' id="[a-z\d.]+_\d+"', '', drawing)


def _draw(canvas: Any, lines: Sequence[Line]) -> None:
  axis = canvas.subplots()
  for line in lines:
    steps, values = line.steps, line.values
    # Few values are drawn as points, too.
    style = {
        'color': _COLOURS[line.colour],
        'marker': '.' if len(steps) <= 30 else '',
    }
    axis.plot(*_thinned(steps, values), **style, linewidth=1.4)
  everything = np.concatenate([line.values for line in lines])
  if everything.min() > 0 and everything.max() > _SPIKY * np.median(everything):
    axis.set_yscale('log')
  axis.locator_params(axis='x', nbins=4, integer=True)
  axis.xaxis.set_major_formatter(lambda step, _: f'{step:,.0f}')
  axis.grid(axis='y')
  axis.set_xlabel('step')


def _thinned(
    steps: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The means of at most 250 stretches of neighbours."""
  stretches = min(len(steps), _STRETCHES)
  means = (
      np.array([part.mean() for part in np.array_split(each, stretches)])
      for each in (steps, values)
  )
  return next(means), next(means)
