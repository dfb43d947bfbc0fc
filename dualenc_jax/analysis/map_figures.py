"""The maps of the two towers: t-SNE, principal components."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

import numpy as np

from dualenc_jax.analysis import maps
from dualenc_jax.analysis.setting import Setting
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.figures import drawing
from dualenc_jax.figures.drawing import Panel
from dualenc_jax.figures.figure import Figure

# Where the curves of explained variance end, at the latest.
_ENOUGH = 0.999


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
    points = maps.tsne(
        np.concatenate([queries, passages]), setting.sample.seed
    )
    share = apart[vectors.name]
    told = 'not measured' if share is None else f'{share:.1%}'
    panels.append(
        Panel(
            vectors.name,
            f'told apart: {told}',
            points[: len(queries)],
            points[len(queries) :],
        )
    )
  unknown = ''
  if None in apart.values():
    unknown = (
        '; not measured where most texts are equal or hang together by'
        ' relevance, so that no folds part them'
    )
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
      draw=functools.partial(drawing.draw_maps, panels=panels),
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
          draw=functools.partial(drawing.draw_maps, panels=panels),
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
      draw=functools.partial(_draw_variance, shares=shares),
  )


def _draw_variance(canvas: Any, shares: Mapping[str, np.ndarray]) -> None:
  axis = canvas.subplots()
  for number, (name, cumulative) in enumerate(shares.items()):
    needed = int(np.searchsorted(cumulative, 0.9)) + 1
    label = f'{name}: 90% in {needed:,} of {len(cumulative):,}'
    if not cumulative[-1]:
      label = f'{name}: none, as all vectors are equal'
    axis.plot(
        np.arange(1, len(cumulative) + 1),
        cumulative,
        label=label,
        linewidth=1.8,
        **drawing.model_style(number),
    )
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
