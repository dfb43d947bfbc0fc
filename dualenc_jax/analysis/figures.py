"""What is drawn of the towers: maps, variance, histograms of cosines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualenc_jax.analysis import maps
from dualenc_jax.analysis.geometry import TINY
from dualenc_jax.analysis.numbers import NEAR_ONE, ratios_of
from dualenc_jax.analysis.sample import Setting
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.figures import drawing
from dualenc_jax.figures.drawing import Curve, Panel
from dualenc_jax.figures.figure import Figure

# Where the curves of explained variance end, at the latest.
_ENOUGH = 0.999
_BINS = 40
# Bounds of the cosines' axis are multiples of it.
_STEP = 0.05
_RATIO_EDGES = np.linspace(-1, 3, 81)


def tsne_figure(
    models: Sequence[Vectors],
    apart: Mapping[str, float | None],
    setting: Setting,
) -> Figure:
  """A t-SNE map of each model, as in figure 2 of Dong et al. 2022.

  Args:
    models: their vectors.
    apart: the separability of each, by its name, None where it has none.
    setting: of what it is made.
  """
  panels = []
  for vectors in models:
    queries, passages = _mapped(vectors, setting)
    both = np.concatenate([queries, passages])
    points = maps.tsne(both, setting.sample.seed)
    share = apart[vectors.name]
    told = 'not measured' if share is None else f'{share:.1%}'
    towers = points[: len(queries)], points[len(queries) :]
    panels.append(Panel(vectors.name, f'told apart: {told}', *towers))
  unknown = (
      '; not measured where most texts are equal or hang together by'
      ' relevance, so that no folds part them'
  ) * (None in apart.values())
  return Figure(
      name='tsne',
      title='Queries and passages on a t-SNE map',
      caption=(
          f'{setting.drawn(setting.mapped)}, at random; perplexity 30,'
          ' Euclidean distances of unit vectors, started from PCA. "Told'
          ' apart" is how often a linear classifier, cross-validated, tells'
          ' the towers apart by the vectors themselves: 50% where the two'
          ' spaces coincide, 100% where they are separate'
          f'{unknown}. {setting.where}'
      ),
      columns=_columns(panels, setting, ('x', 'y')),
      inches=drawing.map_inches(panels),
      draw=lambda canvas: drawing.draw_maps(canvas, panels),
  )


def pca_figures(models: Sequence[Vectors], setting: Setting) -> list[Figure]:
  """The first two principal components, and the variance of all."""
  panels, shares = [], {}
  for vectors in models:
    # As many of each tower, so that neither decides the directions.
    size = min(len(vectors.queries), len(vectors.passages))
    components = maps.PrincipalComponents.fit(
        np.concatenate([vectors.queries[:size], vectors.passages[:size]])
    )
    shares[vectors.name] = np.cumsum(components.shares)
    first, second = components.shares[:2]
    queries, passages = _mapped(vectors, setting)
    panels.append(
        Panel(
            vectors.name,
            f'{first + second:.1%} of the variance',
            components.project(queries),
            components.project(passages),
            (f'component 1 ({first:.1%})', f'component 2 ({second:.1%})'),
        )
    )
  return [
      Figure(
          name='pca',
          title='Queries and passages on their principal components',
          caption=(
              f'{setting.drawn(setting.mapped)}, at random; components of'
              f' both towers together, of {setting.drawn()}. In brackets'
              f' each component\'s share of the variance. {setting.where}'
          ),
          columns=_columns(panels, setting, ('component_1', 'component_2')),
          inches=drawing.map_inches(panels),
          draw=lambda canvas: drawing.draw_maps(canvas, panels),
      ),
      _variance_figure(shares, setting),
  ]


def _variance_figure(
    shares: Mapping[str, np.ndarray], setting: Setting
) -> Figure:
  columns = {'model': [], 'components': [], 'explained_variance': []}
  for name, cumulative in shares.items():
    columns['model'] += [name] * len(cumulative)
    columns['components'] += range(1, len(cumulative) + 1)
    columns['explained_variance'] += cumulative.tolist()
  return Figure(
      name='variance',
      title='Variance that the first components explain',
      caption=(
          'A curve that rises late is of vectors that use many dimensions; the'
          ' legend says how many components hold 90% of the variance.'
          f' {setting.drawn()}, both towers together. {setting.where}'
      ),
      columns=columns,
      inches=drawing.curve_inches(len(shares)),
      draw=lambda canvas: _draw_variance(canvas, shares),
  )


def _draw_variance(canvas: Any, shares: Mapping[str, np.ndarray]) -> None:
  axis = canvas.subplots()
  for number, (name, cumulative) in enumerate(shares.items()):
    needed = int(np.searchsorted(cumulative, 0.9)) + 1
    told = f'90% in {needed:,} of {len(cumulative):,}'
    if not cumulative[-1]:
      told = 'none, as all vectors are equal'
    style = {'linewidth': 1.8, **drawing.model_style(number)}
    counts = np.arange(1, len(cumulative) + 1)
    label = drawing.fitted(f'{name}: {told}', canvas.get_figwidth() - 0.6)
    axis.plot(counts, cumulative, label=label, **style)
  ends = [np.searchsorted(c, _ENOUGH) + 1 for c in shares.values() if c[-1]]
  axis.set_xscale('log')
  axis.set_xlim(1, max([2, *ends]))
  axis.xaxis.set_major_formatter(lambda count, _: f'{count:,.0f}')
  axis.set_ylim(0, 1.02)
  axis.set_xlabel('principal components')
  axis.set_ylabel('explained variance')
  drawing.percent(axis)
  canvas.legend(loc='outside upper left', ncols=1, handlelength=2.2)


def _mapped(
    vectors: Vectors, setting: Setting
) -> tuple[np.ndarray, np.ndarray]:
  return vectors.queries[: setting.mapped], vectors.passages[: setting.mapped]


def _columns(
    panels: Sequence[Panel], setting: Setting, axes: tuple[str, str]
) -> dict[str, list[Any]]:
  sample = setting.sample
  rows = []
  for panel in panels:
    for tower, points, id_of in (
        ('query', panel.queries, sample.query_id),
        ('passage', panel.passages, sample.passage_id),
    ):
      rows += [
          (panel.title, tower, id_of(i), x, y)
          for i, (x, y) in enumerate(points.tolist())
      ]
  return dict(zip(('model', 'tower', 'id', *axes), map(list, zip(*rows))))


def top_cosine_figure(models: Sequence[Vectors], setting: Setting) -> Figure:
  """Cosines of queries and their best hits, as in figure 5 of SamToNe."""
  # A cosine may be above 1 by rounding.
  cosines = {m.name: np.minimum(m.top_cosines, 1) for m in models}
  everything = np.concatenate(list(cosines.values()))
  # The small number keeps a bound that is a multiple of the step where it is.
  low = np.floor(everything.min() / _STEP + 1e-4) * _STEP
  high = max(np.ceil(everything.max() / _STEP - 1e-4) * _STEP, low + _STEP)
  medians = [float(np.median(of)) for of in cosines.values()]
  return _histograms(
      cosines,
      {n: (f'median {m:.3f}', m) for n, m in zip(cosines, medians)},
      np.linspace(low, high, _BINS + 1),
      ('cosine of a query and its top-1 passage', 'share of queries'),
      name='top1_cosine',
      title='How near a query\'s best hit is',
      caption=(
          f'Cosine of each of {len(setting.sample.queries):,} queries with the'
          f' nearest of {setting.searched}, found exactly. At 1 both have one'
          f' direction; marks on the axis are medians. {setting.where}'
      ),
  )


def ratio_figure(models: Sequence[Vectors], setting: Setting) -> Figure:
  """Ratios of similarities, as in figure 6 of SamToNe."""
  sample = setting.sample
  ratios = {m.name: ratios_of(m, sample) for m in models}
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
  told = {
      name: (
          f'median {ratio.median:.2f},'
          f' {ratio.share_within(*NEAR_ONE):.0%} within 0.1 of 1',
          ratio.median,
      )
      for name, ratio in ratios.items()
  }
  return _histograms(
      {name: ratio.values for name, ratio in ratios.items()},
      told,
      _RATIO_EDGES,
      (r'$\cos(q_i, q_j)\,/\,\cos(q_i, p_j)$', 'share of pairs'),
      NEAR_ONE,
      name='similarity_ratio',
      title='Query-query over query-passage similarity',
      caption=(
          f'cos(q_i, q_j) / cos(q_i, p_j) of {draws:,} random pairs i, j of'
          f' {count:,} queries; p_j is {passage}. At 1 the two towers\' spaces'
          ' are balanced; the band is 0.9 to 1.1. Not shown, as outside of the'
          f' axis: {outside}. Left out, as the denominator is below'
          f' {TINY:g}: {left_out:,}. {setting.where}'
      ),
  )


def _histograms(
    values: Mapping[str, np.ndarray],
    told: Mapping[str, tuple[str, float]],
    edges: np.ndarray,
    labels: tuple[str, str],
    band: tuple[float, float] | None = None,
    **words: str,
) -> Figure:
  """Histograms over each other; some values may be in no bin.

  Args:
    values: by model.
    told: by model what the legend says of it, and its median.
    edges: of the bins.
    labels: of the axes.
    band: an interval that is shaded.
    **words: name, title and caption of the figure.
  """
  shares = {
      name: np.histogram(of, edges)[0] / max(len(of), 1)
      for name, of in values.items()
  }
  curves = [
      Curve(f'{name}: {text}', shares[name], median)
      for name, (text, median) in told.items()
  ]
  return Figure(
      **words,
      # A row a bin, a column a model.
      columns={
          'from': edges[:-1].tolist(),
          'to': edges[1:].tolist(),
          **{name: share.tolist() for name, share in shares.items()},
      },
      inches=drawing.curve_inches(len(curves)),
      draw=lambda canvas: drawing.draw_histograms(
          canvas, edges, curves, *labels, band
      ),
  )
