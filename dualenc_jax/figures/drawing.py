"""Colours, and the three kinds of axes that the figures are made of."""

from collections.abc import Sequence
import dataclasses
import textwrap
from typing import Any

import numpy as np

from dualenc_jax.io import untrusted

QUERY = '#2f6bd8'
PASSAGE = '#f28518'
# Neither of the two above, and told apart by the colour-blind.
_MODELS = ('#0f766e', '#b8327a', '#7c5a00', '#5b4bc4', '#64748b', '#a33b20')
_LINES = ('-', '--', '-.', ':')
_GREY = '#6b6b6b'
_FAINT = '#f0f0f0'
_BINS = 48  # Of token counts.
_LETTERS = 10  # That fit an inch.


def fitted(text: str, inches: float = 9.0) -> str:
  """A text for matplotlib to draw as it is, in lines of so many inches at most.

  What stands between two dollars is not a formula.
  """
  lines = textwrap.fill(untrusted.visible(text), max(int(_LETTERS * inches), 1))
  return lines.replace('$', r'\$')


def model_style(number: int) -> dict[str, Any]:
  """Colour and dashes of the curve of a model, by its number from 0."""
  return {
      'color': _MODELS[number % len(_MODELS)],
      'linestyle': _LINES[number // len(_MODELS) % len(_LINES)],
  }


@dataclasses.dataclass(frozen=True)
class Panel:
  """A map of one model, its queries [n, 2] and passages [m, 2].

  The note is a line below the title; labels are of axes that mean something.
  """

  title: str
  note: str
  queries: np.ndarray
  passages: np.ndarray
  labels: tuple[str, str] = ('', '')


def map_inches(panels: Sequence[Panel]) -> tuple[float, float]:
  """The size of a figure of maps."""
  rows, columns = _grid(len(panels))
  side = _side(panels)
  # Room for the labels of the axes, so that a square is left.
  labels = (0.6, 0.45) if any(panels[0].labels) else (0, 0)
  return (side + labels[0]) * columns, (side + labels[1] + 0.5) * rows + 0.4


def _side(panels: Sequence[Panel]) -> float:
  return 4.6 if len(panels) == 1 else 2.7


def _grid(count: int) -> tuple[int, int]:
  """Rows and columns of so many panels: three side by side at most."""
  columns = min(count, 3)
  return -(-count // columns), columns


def draw_maps(canvas: Any, panels: Sequence[Panel]) -> None:
  """Draws maps, queries blue and passages orange, on a matplotlib figure."""
  from matplotlib.lines import Line2D

  axes = canvas.subplots(*_grid(len(panels)), squeeze=False).ravel()
  for axis, panel in zip(axes, panels):
    _draw_map(axis, panel, _side(panels))
  for axis in axes[len(panels) :]:
    axis.remove()
  canvas.legend(
      handles=[
          Line2D([], [], marker='o', linestyle='', color=colour, label=label)
          for label, colour in (('queries', QUERY), ('passages', PASSAGE))
      ],
      loc='outside upper left',
      ncols=2,
      borderpad=0.8,
      handletextpad=0.1,
      columnspacing=1.2,
  )


def _draw_map(axis: Any, panel: Panel, inches: float) -> None:
  points = np.concatenate([panel.queries, panel.passages])
  sizes = len(panel.queries), len(panel.passages)
  # In a mixed order, so that neither tower hides the other.
  order = np.random.default_rng(0).permutation(len(points))
  axis.scatter(
      *points[order].T,
      s=np.clip(8000 / len(points), 6, 26),
      c=np.repeat([QUERY, PASSAGE], sizes)[order],
      alpha=0.8,
      linewidths=0.3,
      edgecolors='white',
  )
  # A square that holds all points; of any size if they are one.
  low, high = points.min(axis=0), points.max(axis=0)
  half = 1.05 * (high - low).max() / 2 or 1
  axis.set(
      xlim=(low[0] + high[0]) / 2 + np.array([-half, half]),
      ylim=(low[1] + high[1]) / 2 + np.array([-half, half]),
      aspect='equal',
      xlabel=panel.labels[0],
      ylabel=panel.labels[1],
  )
  axis.set_title(
      f'{fitted(panel.title, inches)}\n',
      loc='left',
      fontweight='bold',
      linespacing=1.25,
  )
  axis.annotate(
      panel.note,
      (0, 1),
      (0, 5),
      xycoords='axes fraction',
      textcoords='offset points',
      fontsize=9.5,
      color=_GREY,
  )
  axis.spines[['top', 'right']].set_visible(True)
  axis.spines[:].set_color('#d4d4d4')
  if any(panel.labels):
    axis.locator_params(nbins=5)
  else:
    axis.set(xticks=[], yticks=[])
  axis.tick_params(length=2)


@dataclasses.dataclass(frozen=True)
class Curve:
  """The histogram of one model, shares [bins]; a thin line marks `middle`."""

  label: str
  values: np.ndarray
  middle: float


def curve_inches(count: int) -> tuple[float, float]:
  """The size of a figure of so many curves, with a line of legend each."""
  return 5.0, 3.3 + 0.2 * count


def draw_histograms(
    canvas: Any, edges: np.ndarray, curves: Sequence[Curve], x_label: str,
    y_label: str, band: tuple[float, float] | None = None,
) -> None:
  """Draws histograms of equal bins, edges [bins + 1], over each other.

  An interval `band` is shaded.
  """
  axis = canvas.subplots()
  if band is not None:
    axis.axvspan(*band, color=_FAINT, linewidth=0)
  for number, curve in enumerate(curves):
    style = model_style(number)
    colour = style['color']
    # Many that are opaque would be mud.
    pale = 0.3 / len(curves)
    axis.stairs(curve.values, edges, fill=True, color=colour, alpha=pale)
    label = fitted(curve.label, canvas.get_figwidth() - 0.6)
    axis.stairs(curve.values, edges, label=label, linewidth=1.5, **style)
    if edges[0] <= curve.middle <= edges[-1]:
      axis.axvline(curve.middle, 0, 0.04, color=colour, linewidth=2.5)
  axis.set(xlim=(edges[0], edges[-1]), xlabel=x_label, ylabel=y_label)
  axis.set_ylim(0)
  percent(axis)
  canvas.legend(loc='outside upper left', ncols=1, handlelength=2.2)


def percent(axis: Any) -> None:
  """A y axis of shares, in percent, with faint lines."""
  axis.yaxis.set_major_formatter(lambda share, _: f'{100 * share:.3g}%')
  axis.locator_params(axis='y', nbins=5)
  axis.grid(axis='y')
  axis.spines['left'].set_visible(False)
  axis.tick_params(axis='y', length=0)
  axis.tick_params(axis='x', length=3)


def draw_lengths(
    axis: Any, tokens: np.ndarray, texts: np.ndarray, limit: int, title: str,
    colour: str,
) -> None:
  """Draws a histogram of texts by their number of tokens, and the limit.

  `texts` [n] counts those of `tokens` [n] tokens, ascending; longer texts than
  the limit are cut to it.
  """
  shares = texts / texts.sum()
  # The longest 1% may lie beyond the axis.
  most = tokens[np.searchsorted(np.cumsum(shares), 0.99 - 1e-9)]
  end = max(most, limit) * 1.08
  width = int(np.ceil(end / _BINS))
  # Bins of whole numbers of tokens.
  edges = np.arange(0, end + width, width) + 0.5
  heights = np.histogram(tokens, edges, weights=shares)[0]
  axis.stairs(heights, edges, fill=True, color=colour, alpha=0.85)
  axis.set_xlim(0, edges[-1])
  axis.margins(y=0.16)
  axis.set_title(fitted(title), loc='left', fontsize=10)
  percent(axis)
  axis.axvline(limit + 0.5, color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
  left = limit > edges[-1] / 2
  axis.annotate(
      f'limit {limit}',
      (limit + 0.5, 1),
      (-5 if left else 5, -3),
      xycoords=('data', 'axes fraction'),
      textcoords='offset points',
      ha='right' if left else 'left',
      va='top',
      fontsize=9,
      color='#3d3d3d',
  )
