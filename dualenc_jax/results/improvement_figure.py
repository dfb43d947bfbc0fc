"""Relative improvement per set, SamToNe's figure 4 and Dong 2022's figure 3."""

from collections.abc import Sequence
import pathlib
import re
from typing import Any

from dualenc_jax.figures import figure as figure_lib
from dualenc_jax.figures.figure import Figure, fit_text
from dualenc_jax.results.comparison import Comparison, Difference

LEVEL = 0.05
_BETTER = '#2f6bd8'
_WORSE = '#e4572e'
# Told apart in print, too, by their markers.
_COLOURS = ('#2f6bd8', '#f28518', '#0f766e', '#b8327a', '#7c5a00', '#64748b')
_MARKERS = ('o', 's', 'D', '^', 'v', 'P')
_GREY = '#8a8a8a'
_FAINT = 0.35  # Opacity of what may be chance.
_CHANCE = f'may be chance (p \u2265 {LEVEL})'


def figures(comparison: Comparison) -> list[Figure]:
  """A figure a metric: sorted bars of one model, lines of several.

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
  sets = list(dict.fromkeys(d.set_name for d in shown))
  name, model = comparison.baseline.name, comparison.models[0].name
  label = f'elative improvement of {metric} over {name} (%)'

  def draw(canvas: Any) -> None:
    if of_one:
      _draw_bars(canvas, shown, f'{model}: r{label}')
    else:
      _draw_lines(canvas, shown, sets, metric, name)

  return Figure(
      name='relative_improvement_' + re.sub('[@-]', '_', metric.lower()),
      title=f'{metric} {f"of {model} " * of_one}relative to {name}',
      caption=f'R{label} by set. {"Pale" if of_one else "Hollow"}: {_CHANCE},'
      ' by the randomization test with Holm correction.',
      columns={
          'set': [d.set_name for d in shown],
          'split': [d.evaluated.split for d in shown],
          'model': [d.model for d in shown],
          'relative_improvement_percent': [_percent(d) for d in shown],
          'baseline': [d.baseline_value for d in shown],
          'value': [d.value for d in shown],
          'p_randomization_holm': [d.randomization_holm for d in shown],
      },
      inches=(
          (6.4, 1.0 + 0.27 * len(sets))
          if of_one
          else (max(5.2, 2.2 + 0.5 * len(sets)), 3.9)
      ),
      draw=draw,
  )


def _percent(d: Difference) -> float:
  assert d.relative is not None
  return 100 * d.relative


def _is_chance(d: Difference) -> bool:
  return d.randomization_holm >= LEVEL


def _plain(axis: Any, numbers: str) -> None:
  """Faint lines across the axis of numbers, and nothing around."""
  axis.grid(axis=numbers)
  axis.spines[['left', 'bottom']].set_visible(False)
  axis.tick_params(length=0)


def _draw_bars(canvas: Any, shown: Sequence[Difference], title: str) -> None:
  axis = canvas.subplots()
  values = list(map(_percent, shown))
  bars = axis.barh(
      range(len(shown)),
      values,
      height=0.68,
      color=[_BETTER if value >= 0 else _WORSE for value in values],
  )
  for bar, d in zip(bars, shown):
    bar.set_alpha(_FAINT if _is_chance(d) else None)
  if any(map(_is_chance, shown)):
    axis.set_xlabel(f'pale: {_CHANCE}', fontsize=8.5, color=_GREY)
  axis.bar_label(
      bars,
      [f'{value:+.1f}'.replace('-', '\u2212') for value in values],
      padding=3,
      fontsize=8.5,
      color='#3d3d3d',
  )
  axis.set_yticks(range(len(shown)), [fit_text(d.set_name) for d in shown])
  axis.invert_yaxis()
  axis.axvline(0, color=_GREY, linewidth=0.8)
  # Room for the labels on both sides.
  axis.margins(x=0.12, y=0.02)
  canvas.suptitle(fit_text(title, canvas.get_figwidth()), fontsize=11)
  _plain(axis, 'x')


def _draw_lines(
    canvas: Any, shown: Sequence[Difference], sets: Sequence[str], metric: str,
    baseline: str,
) -> None:
  axis = canvas.subplots()
  axis.axhline(0, color=_GREY, linewidth=1.2, label=fit_text(baseline))
  models = list(dict.fromkeys(d.model for d in shown))
  for number, model in enumerate(models):
    own = [d for d in shown if d.model == model]
    places = [sets.index(d.set_name) for d in own]
    values = list(map(_percent, own))
    colour = _COLOURS[number % len(_COLOURS)]
    marker = _MARKERS[number % len(_MARKERS)]
    style = {'color': colour, 'marker': marker, 'linewidth': 1.4}
    axis.plot(places, values, **style, markersize=6.5, label=fit_text(model))
    hollow = [point for *point, d in zip(places, values, own) if _is_chance(d)]
    style = {'color': 'white', 'marker': marker, 'linestyle': ''}
    axis.plot(*zip(*hollow), **style, markersize=4.2)
  # A letter is about 0.09 inches wide, the y axis and the margins 0.8.
  place = (canvas.get_figwidth() - 0.8) / len(sets)
  long = len(sets) > 1 and 0.09 * max(map(len, sets)) > place
  axis.set_xticks(
      range(len(sets)),
      list(map(fit_text, sets)),
      rotation=35 if long else 0,
      ha='right' if long else 'center',
      rotation_mode='anchor',
  )
  axis.set_ylabel(f'\u0394{metric}')
  if any(map(_is_chance, shown)):
    axis.set_xlabel(f'hollow: {_CHANCE}', fontsize=8.5, color=_GREY)
  axis.yaxis.set_major_formatter(
      lambda value, _: f'{value:+.3g}%'.replace('-', '\u2212') if value else '0'
  )
  axis.margins(x=0.04, y=0.08)
  _plain(axis, 'y')
  # About 10 letters an inch, and as much as 6 for a line and the space.
  letters = max(map(len, [baseline, *models])) + 6
  fitting = max(int(canvas.get_figwidth() * 10 / letters), 1)
  canvas.legend(loc='outside upper left', ncols=min(len(models) + 1, fitting))
