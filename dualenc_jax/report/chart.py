"""Line charts as SVG: no script, colours from the page's style sheet."""

from collections.abc import Mapping

import numpy as np

from dualenc_jax.report import axis
from dualenc_jax.report.axis import Axis, precise
from dualenc_jax.report.markup import Html, tag
from dualenc_jax.report.series import Series

# About the width of a phone, so that labels there have their own size.
WIDTH, HEIGHT = 360, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, WIDTH - 8, 20, HEIGHT - 26
# Curves this short show their points.
_DOTTED = 30
_READOUTS = 60


def draw(lines: Mapping[str, Series], y: Axis, window: int = 1) -> Html:
  """A chart of curves by step.

  Pointing at it, or touching it, shows the values there; 60 of them at most.

  Args:
    lines: finite series by name, each with a point at least; the first decides
      where values can be read.
    y: an axis that holds all of them.
    window: how many values make a mean; above 1 the curves of means are drawn
      over those of the values.
  """
  low = min(int(s.steps[0]) for s in lines.values())
  high = max(int(s.steps[-1]) for s in lines.values())
  x = axis.linear(low, high, fit=True)
  curves = [
      _curve(i, s, x, y, window) for i, s in enumerate(lines.values())
  ]
  first = next(iter(lines.values()))
  return tag(
      'svg',
      *_grid(x, y),
      *curves,
      *_readouts(lines, first.steps, x, y),
      viewBox=f'0 0 {WIDTH} {HEIGHT}',
      role='img',
      aria_label=', '.join(
          f'{name}: {precise(s.values[-1])} at step {s.steps[-1]}'
          for name, s in lines.items()
      ),
  )


def _grid(x: Axis, y: Axis) -> list[Html]:
  parts = [
      tag(
          'text', 'step', class_='tick', x=0, y=_BOTTOM + 15
      )
  ]
  for tick in y.ticks:
    at = f'{_y(y, tick):.1f}'
    parts += [
        tag('line', class_='grid', x1=_LEFT, x2=_RIGHT, y1=at, y2=at),
        tag(
            'text', axis.short(tick), class_='tick', x=_LEFT - 6, y=at,
            text_anchor='end', dominant_baseline='central',
        ),
    ]
  for tick in x.ticks:
    if float(tick).is_integer():
      at = _x(x, tick)
      parts.append(
          tag(
              'text', axis.short(tick), class_='tick', x=f'{at:.1f}',
              y=_BOTTOM + 15, text_anchor=_anchor(at),
          )
      )
  return parts


def _curve(
    number: int, series: Series, x: Axis, y: Axis, window: int
) -> Html:
  kind = f's{number}'
  if len(series) <= _DOTTED:
    dots = [
        tag('circle', cx=f'{a:.1f}', cy=f'{b:.1f}', r=2.5)
        for a, b in _points(series, x, y)
    ]
    return tag('g', _path(series, x, y, 'line'), *dots, class_=kind)
  if window == 1:
    return tag('g', _path(series.thinned(), x, y, 'line'), class_=kind)
  return tag(
      'g',
      _path(series.thinned(), x, y, 'raw'),
      _path(series.smoothed(window).thinned(), x, y, 'line'),
      class_=kind,
  )


def _path(series: Series, x: Axis, y: Axis, kind: str) -> Html:
  points = ' '.join(f'{a:.1f},{b:.1f}' for a, b in _points(series, x, y))
  return tag('path', class_=kind, d=f'M{points}')


def _points(series: Series, x: Axis, y: Axis) -> list[tuple[float, float]]:
  return [
      (_x(x, step), _y(y, value))
      for step, value in zip(series.steps.tolist(), series.values.tolist())
  ]


def _readouts(
    lines: Mapping[str, Series], steps: np.ndarray, x: Axis, y: Axis
) -> list[Html]:
  """Invisible strips side by side that show the values of a step."""
  count = min(len(steps), _READOUTS)
  chosen = steps[np.linspace(0, len(steps) - 1, count).round().astype(int)]
  places = np.array([_x(x, step) for step in chosen.tolist()])
  edges = [_LEFT, *(places[1:] + places[:-1]) / 2, _RIGHT]
  parts = []
  for i, step in enumerate(chosen.tolist()):
    at = f'{places[i]:.1f}'
    values = {name: series.at(step) for name, series in lines.items()}
    values = {name: v for name, v in values.items() if v is not None}
    numbers = list(lines)
    words = [
        tag('tspan', f' {precise(v)}', class_=f's{numbers.index(name)}')
        for name, v in values.items()
    ]
    marks = [
        tag('circle', class_=f's{numbers.index(name)}', cx=at,
            cy=f'{_y(y, v):.1f}', r=3.5)
        for name, v in values.items()
    ]
    text = ', '.join(f'{name} {precise(v)}' for name, v in values.items())
    parts.append(
        tag(
            'g',
            tag('title', f'step {step:,}: {text}'),
            tag('rect', x=f'{edges[i]:.1f}', y=0, height=_BOTTOM,
                width=f'{edges[i + 1] - edges[i]:.1f}'),
            tag('line', x1=at, x2=at, y1=_TOP, y2=_BOTTOM),
            *marks,
            tag('text', f'step {step:,}', *words, x=_RIGHT, y=11,
                text_anchor='end'),
            class_='at',
            tabindex=-1,
        )
    )
  return parts


def _anchor(at: float) -> str:
  return 'end' if at > _RIGHT - 12 else 'middle'


def _x(x: Axis, step: float) -> float:
  return _LEFT + (_RIGHT - _LEFT) * x.position(step)


def _y(y: Axis, value: float) -> float:
  return _BOTTOM + (_TOP - _BOTTOM) * y.position(value)
