"""Relative improvement per set, SamToNe's figure 4 and Dong 2022's figure 3."""

from collections.abc import Sequence
import pathlib
import re
from typing import Any

from dualenc_jax.evaluation.results.comparison import Comparison, Difference
from dualenc_jax.utils import figure as figure_lib
from dualenc_jax.utils.figure import Figure, fit_text

LEVEL = 0.05
_COLOURS = ('#2f6bd8', '#f28518', '#0f766e', '#b8327a', '#7c5a00', '#64748b')
_GREY = '#8a8a8a'
_FAINT = 0.35  # Opacity of what may be chance.


def figures(comparison: Comparison) -> list[Figure]:
  """A figure a metric; bars of one model are sorted.

  Sets on which the baseline has 0 are left out; so is a metric without others.
  """
  known = [d for d in comparison.differences if d.relative is not None]
  return [
      _figure(comparison, metric, [d for d in known if d.metric == metric])
      for metric in dict.fromkeys(d.metric for d in known)
  ]


def save(comparison: Comparison, folder: pathlib.Path) -> list[str]:
  """Writes the figures; returns the names of their files.

  Raises:
    ImportError: matplotlib is not installed.
  """
  saved = [figure_lib.save(figure, folder) for figure in figures(comparison)]
  return [files[kind] for files in saved for kind in ('png', 'svg', 'csv')]


def _figure(
    comparison: Comparison, metric: str, shown: Sequence[Difference]
) -> Figure:
  of_one = len(comparison.models) == 1
  if of_one:
    shown = sorted(shown, key=lambda d: -_percent(d))
  name, model = comparison.baseline.name, comparison.models[0].name
  words = f'improvement of {metric} over {name} (%)'
  title = f'{model}: relative {words}' if of_one else f'Relative {words}'
  return Figure(
      name='relative_improvement_' + re.sub('[@-]', '_', metric.lower()),
      title=f'{metric} {f"of {model} " * of_one}relative to {name}',
      caption=f'Relative {words} by set. Pale: may be chance (p \u2265'
      f' {LEVEL}), by the randomization test with Holm correction.',
      columns={
          'set': [d.set_name for d in shown],
          'split': [d.evaluated.split for d in shown],
          'model': [d.model for d in shown],
          'relative_improvement_percent': [_percent(d) for d in shown],
          'baseline': [d.baseline_value for d in shown],
          'value': [d.value for d in shown],
          'p_randomization_holm': [d.randomization_holm for d in shown],
      },
      # As many inches for each bar, and for what is between sets.
      inches=(
          6.4, 1.0 + 0.18 * len(shown) + 0.09 * len({d.set_name for d in shown})
      ),
      draw=lambda canvas: _draw(canvas, shown, title),
  )


def _percent(d: Difference) -> float:
  assert d.relative is not None
  return 100 * d.relative


def _draw(canvas: Any, shown: Sequence[Difference], title: str) -> None:
  """Bars by set, one of each model, its name in the legend if several."""
  axis = canvas.subplots()
  sets = list(dict.fromkeys(d.set_name for d in shown))
  models = list(dict.fromkeys(d.model for d in shown))
  height = 0.68 / len(models)
  for number, model in enumerate(models):
    own = [d for d in shown if d.model == model]
    offset = (number - (len(models) - 1) / 2) * height
    values = list(map(_percent, own))
    bars = axis.barh(
        [sets.index(d.set_name) + offset for d in own],
        values,
        height,
        color=_COLOURS[number % len(_COLOURS)],
        label=fit_text(model),
    )
    for bar, d in zip(bars, own):
      bar.set_alpha(_FAINT if d.randomization_holm >= LEVEL else None)
    texts = [f'{value:+.1f}'.replace('-', '\u2212') for value in values]
    axis.bar_label(bars, texts, padding=3, fontsize=8.5, color='#3d3d3d')
  if any(d.randomization_holm >= LEVEL for d in shown):
    words = f'pale: may be chance (p \u2265 {LEVEL})'
    axis.set_xlabel(words, fontsize=8.5, color=_GREY)
  axis.set_yticks(range(len(sets)), list(map(fit_text, sets)))
  axis.invert_yaxis()
  axis.axvline(0, color=_GREY, linewidth=0.8)
  # Room for the labels on both sides.
  axis.margins(x=0.12, y=0.02)
  axis.grid(axis='x')
  axis.spines[['left', 'bottom']].set_visible(False)
  axis.tick_params(length=0)
  canvas.suptitle(fit_text(title, canvas.get_figwidth()), fontsize=11)
  if len(models) > 1:
    # About 10 letters an inch, and as much as 6 for a colour and the space.
    letters = max(map(len, models)) + 6
    columns = max(int(canvas.get_figwidth() * 10 / letters), 1)
    canvas.legend(loc='outside lower left', ncols=min(len(models), columns))
