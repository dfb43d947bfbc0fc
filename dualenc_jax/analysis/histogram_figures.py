"""The histograms of SamToNe's figures 5 and 6."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

import numpy as np

from dualenc_jax.analysis.numbers import NEAR_ONE, ratios_of
from dualenc_jax.analysis.setting import Setting
from dualenc_jax.analysis.similarity import TINY
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.figures import drawing
from dualenc_jax.figures.drawing import Curve
from dualenc_jax.figures.figure import Figure

_BINS = 40
# Bounds of the cosines' axis are multiples of it.
_STEP = 0.05
_RATIO_EDGES = np.linspace(-1, 3, 81)


def top_cosine_figure(
    models: Sequence[Vectors], setting: Setting
) -> Figure:
  """Cosines of queries and their best hits, as in figure 5 of SamToNe."""
  # A cosine may be above 1 by rounding.
  cosines = {m.name: np.minimum(m.top_cosines, 1) for m in models}
  everything = np.concatenate(list(cosines.values()))
  # The small number keeps a bound that is a multiple of the step where it is.
  low = np.floor(everything.min() / _STEP + 1e-4) * _STEP
  high = max(np.ceil(everything.max() / _STEP - 1e-4) * _STEP, low + _STEP)
  edges = np.linspace(low, high, _BINS + 1)
  shares = {name: _shares(values, edges) for name, values in cosines.items()}
  curves = [
      Curve(f'{name}: median {median:.3f}', shares[name], median)
      for name, median in _medians(cosines).items()
  ]
  return Figure(
      name='top1_cosine',
      title='How near a query\'s best hit is',
      caption=(
          f'Cosine of each of {len(setting.sample.queries):,} queries with the'
          f' nearest of {setting.searched}, found exactly. At 1 both have one'
          f' direction; marks on the axis are medians. {setting.where}'
      ),
      columns=_columns(shares, edges),
      inches=drawing.curve_inches(len(models)),
      draw=functools.partial(
          drawing.draw_histograms,
          edges=edges,
          curves=curves,
          x_label='cosine of a query and its top-1 passage',
          y_label='share of queries',
      ),
  )


def ratio_figure(models: Sequence[Vectors], setting: Setting) -> Figure:
  """Ratios of similarities, as in figure 6 of SamToNe."""
  sample = setting.sample
  ratios = {m.name: ratios_of(m, sample) for m in models}
  shares = {n: _shares(r.values, _RATIO_EDGES) for n, r in ratios.items()}
  outside = ', '.join(
      f'{name} {1 - ratio.share_within(*_RATIO_EDGES[[0, -1]]):.1%}'
      for name, ratio in ratios.items()
  )
  left_out = sum(ratio.left_out for ratio in ratios.values())
  passage = 'a passage that is relevant for query j'
  if not sample.has_pairs:
    passage = 'a passage drawn at random, since none is judged'
  draws = len(next(iter(ratios.values())).values)
  count = len(sample.pair_queries) if sample.has_pairs else len(sample.queries)
  curves = [
      Curve(
          f'{name}: median {ratio.median:.2f},'
          f' {ratio.share_within(*NEAR_ONE):.0%} within 0.1 of 1',
          shares[name],
          ratio.median,
      )
      for name, ratio in ratios.items()
  ]
  return Figure(
      name='similarity_ratio',
      title='Query-query over query-passage similarity',
      caption=(
          f'cos(q_i, q_j) / cos(q_i, p_j) of {draws:,} random pairs i, j of'
          f' {count:,} queries; p_j is {passage}. At 1 the two towers\' spaces'
          ' are balanced; the band is 0.9 to 1.1. Not shown, as outside of the'
          f' axis: {outside}. Left out, as the denominator is below'
          f' {TINY:g}: {left_out:,}. {setting.where}'
      ),
      columns=_columns(shares, _RATIO_EDGES),
      inches=drawing.curve_inches(len(models)),
      draw=functools.partial(
          drawing.draw_histograms,
          edges=_RATIO_EDGES,
          curves=curves,
          x_label=r'$\cos(q_i, q_j)\,/\,\cos(q_i, p_j)$',
          y_label='share of pairs',
          band=NEAR_ONE,
      ),
  )


def _shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
  """Of all values, those in each bin; some may be in none."""
  return np.histogram(values, edges)[0] / max(len(values), 1)


def _medians(values: Mapping[str, np.ndarray]) -> dict[str, float]:
  return {name: float(np.median(v)) for name, v in values.items()}


def _columns(
    shares: Mapping[str, np.ndarray], edges: np.ndarray
) -> dict[str, list[Any]]:
  """One row a bin, one column a model."""
  return {
      'from': edges[:-1].tolist(),
      'to': edges[1:].tolist(),
      **{name: values.tolist() for name, values in shares.items()},
  }
