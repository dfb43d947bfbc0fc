"""Quality over a number of each system: a line chart of a metric on a set.

The number may be parameters (SamToNe's figure 3, Dong 2022's figure 4), steps,
bytes or candidates (Thakur 2022's figures 2 and 4) or milliseconds (DAFT's
figure 6).
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import re
from typing import Any, NamedTuple

from dualenc_jax.evaluation.results.benchmarks import EvaluatedSet
from dualenc_jax.evaluation.results.comparison import Comparison
from dualenc_jax.evaluation.results.result_files import METRICS, Model
from dualenc_jax.utils import figure as figure_lib, json_file
from dualenc_jax.utils.errors import did_you_mean_or_known, UserError
from dualenc_jax.utils.figure import Figure, fit_text

# Facts of a result by the name of the number, and the name of the axis.
_FACTS = {
    'parameters': ('parameters', 'parameters of both towers'),
    'bytes': ('bytes_per_passage', 'bytes per passage'),
    'steps': ('checkpoint_step', 'steps'),
    'candidates': ('candidates', 'candidates that are scored again'),
}
_LATENCY = {
    'measured': [{
        'model': str,
        'tokens_mean': int | float,
        'with_tokenizer': {'p50': int | float},
    }]
}
# An axis whose numbers are further apart than this factor is logarithmic.
_SPREAD = 20


@dataclasses.dataclass(frozen=True)
class Over:
  """A number of each system.

  Attributes:
    name: for files and columns.
    label: of the axis.
    source: where it is from: a fact of results, or a file.
    of_model: the numbers by the model's name; None if they are facts.
  """

  name: str
  label: str
  source: str
  of_model: Mapping[str, float] | None = None

  def value(self, model: Model, evaluated: EvaluatedSet) -> float:
    """The number of a model on a set; UserError where it has none, or two."""
    results = [model.results[key] for key in evaluated.keys]
    if self.of_model is not None:
      found = {self.of_model.get(model.name)}
      where, remedy = self.source, 'Give --names as there, or measure it'
    else:
      found = {result.provenance.get(self.source) for result in results}
      where = f'{results[0].where}/{METRICS} ("{self.source}")'
      remedy = 'Evaluate it again, or leave it out'
    count = 'several numbers' if len(found) > 1 else 'no number'
    if len(found) > 1 or not isinstance(value := found.pop(), (int, float)):
      raise UserError(
          f'--over={self.name}: {model.name} has {count} for'
          f' {evaluated.full_name} in {where}. {remedy}.'
      )
    return value


def parse(text: str) -> Over:
  """The number of --over: one of the facts, or the latency.json of a file."""
  if text in _FACTS:
    fact, label = _FACTS[text]
    return Over(text, label, fact)
  path = pathlib.Path(text).expanduser()
  if not path.is_file():
    near = did_you_mean_or_known(text, _FACTS)
    raise UserError(
        f'--over is {text}, which is no file and no number.{near}'
    )
  hint = 'Expected a latency.json of `dualenc latency --output_dir`.'
  content = json_file.read(path, hint)
  json_file.check(content, _LATENCY, path, hint)
  times: dict[str, list[float]] = {}
  for one in content['measured']:
    times.setdefault(one['model'], []).append(one['with_tokenizer']['p50'])
  tokens = dict.fromkeys(f'{m["tokens_mean"]:.3g}' for m in content['measured'])
  mean = 'mean over ' * (len(tokens) > 1)
  return Over(
      'milliseconds',
      f'ms of a query at p50 ({mean}{", ".join(tokens)} tokens)',
      str(path),
      {name: math.fsum(own) / len(own) for name, own in times.items()},
  )


class Point(NamedTuple):
  """A system on a set: the line it is on, its name, its number, its metric."""

  line: str
  model: str
  number: float
  value: float


def figures(comparison: Comparison, over: Over) -> list[Figure]:
  """A figure of each set and metric; UserError where a number is missing."""
  models = {m.name: m for m in (comparison.baseline, *comparison.models)}
  values: dict[tuple[EvaluatedSet, str], dict[str, float]] = {}
  for d in comparison.differences:
    own = values.setdefault((d.evaluated, d.metric), {})
    own |= {comparison.baseline.name: d.baseline_value, d.model: d.value}
  return [
      _figure(over, evaluated, metric, [
          Point(
              models[name].line, name, over.value(models[name], evaluated),
              value,
          )
          for name, value in own.items()
      ])
      for (evaluated, metric), own in values.items()
  ]


def _figure(
    over: Over, evaluated: EvaluatedSet, metric: str, points: Sequence[Point]
) -> Figure:
  lines = list(dict.fromkeys(p.line for p in points))
  points = sorted(points, key=lambda p: (lines.index(p.line), p.number))
  title = f'{metric} on {evaluated.full_name}'
  name = re.sub(r'\W+', '_', f'{metric} over {over.name} {evaluated.full_name}')
  columns = zip(Point._fields, map(list, zip(*points)))
  return Figure(
      name=name.lower().strip('_'),
      title=f'{title} over {over.label}',
      caption=f'{title} of {len(points)} systems over {over.label}.',
      columns={
          {'number': over.name, 'value': metric}.get(field, field): column
          for field, column in columns
      },
      inches=(5.0, 3.6),
      draw=lambda canvas: _draw(canvas, points, title, over.label),
  )


def _draw(
    canvas: Any, points: Sequence[Point], title: str, label: str
) -> None:
  import matplotlib.ticker

  axis = canvas.subplots()
  lines = list(dict.fromkeys(p.line for p in points))
  for number, line in enumerate(lines):
    own = [p for p in points if p.line == line]
    axis.plot(
        [p.number for p in own], [p.value for p in own],
        color=figure_lib.COLOURS[number % len(figure_lib.COLOURS)],
        linestyle='-' if number < len(figure_lib.COLOURS) else '--',
        marker='o', markersize=4.5, linewidth=1.6, label=fit_text(line),
    )
  numbers = sorted({p.number for p in points})
  is_log = 0 < numbers[0] * _SPREAD < numbers[-1]
  if is_log:
    axis.set_xscale('log')
    axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.minorticks_off()
  axis.xaxis.set_major_formatter(lambda number, _: _short(number))
  axis.margins(x=0.08, y=0.12)
  axis.set_xlabel(fit_text(label + ', log scale' * is_log, 4.5))
  figure_lib.format_percent(axis)
  axis.set_title(fit_text(title, 4.5), loc='left')
  if lines == ['']:
    # One line without a name: its points have names.
    for point in points:
      axis.annotate(
          fit_text(point.model, 1.6), (point.number, point.value), (0, 6),
          textcoords='offset points', ha='center', fontsize=8,
          bbox={'facecolor': 'white', 'linewidth': 0, 'pad': 1},
      )
  else:
    canvas.legend(loc='outside lower left', ncols=3)


def _short(number: float) -> str:
  """'1,024', '12.5', '250M' or '11B'."""
  for scale, letter in ((1e9, 'B'), (1e6, 'M')):
    if number >= scale:
      return f'{number / scale:.3g}{letter}'
  return f'{number:,.6g}'
