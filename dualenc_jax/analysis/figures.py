"""Figures of the towers: maps, variance, histograms, curves over dims."""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from dualenc_jax.analysis.analyse import Analysis, NEAR_ONE, ratios_of
from dualenc_jax.analysis.geometry import DRAWS, share_within, TINY
from dualenc_jax.analysis.sample import RELEVANT, Sample
from dualenc_jax.figures import drawing
from dualenc_jax.figures.drawing import Curve, Panel
from dualenc_jax.figures.figure import Figure

_PERPLEXITY = 30
# Standard deviation of the first coordinate where t-SNE starts: small, so that
# points can pass each other (Kobak and Berens 2019).
_START = 1e-4
# Where the curves of explained variance end, at the latest.
_ENOUGH = 0.999
_BINS = 40
# Bounds of the cosines' axis are multiples of it.
_STEP = 0.05
_RATIO_EDGES = np.linspace(-1, 3, 81)


def all_of(analyses: Sequence[Analysis], mapped: int) -> list[Figure]:
  """All figures of one sample, with `mapped` points of each tower on maps."""
  return [
      tsne_figure(analyses, mapped),
      *pca_figures(analyses, mapped),
      top_cosine_figure(analyses),
      ratio_figure(analyses),
      *([dims_figure(analyses)] if analyses[0].vectors.mrr else []),
      length_figure(analyses),
  ]


def _where(analyses: Sequence[Analysis]) -> str:
  """Data, models and seed, to end a caption with."""
  data, seed = analyses[0].data, analyses[0].sample.seed
  models = ', '.join(
      f'{a.name} (step {a.provenance["checkpoint_step"]:,})' for a in analyses
  )
  return f'{data["label"]}, split {data["split"]}; {models}; seed {seed}.'


def _drawn(sample: Sample, most: int | None = None) -> str:
  """How many queries and passages, and how they were drawn."""
  whole = sample.retrieval_set
  queries = _part(sample.queries[:most], whole.query_ids)
  passages = _part(sample.passages[:most], whole.corpus)
  relevant = ' (relevant for them)' if sample.kind == RELEVANT else ''
  return f'{queries} queries and {passages} passages{relevant}'


def _searched(sample: Sample) -> str:
  return f'the {_part(sample.searched, sample.retrieval_set.corpus)} passages'


def _part(rows: np.ndarray, whole: Sized) -> str:
  count = f'{len(rows):,}'
  return count if len(rows) == len(whole) else f'{count} of {len(whole):,}'


def tsne(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
  """The t-SNE map of vectors [n, D]: float32 [n, 2] (van der Maaten 2008).

  Zeros if all are equal. Euclidean distances order unit vectors as cosines do;
  perplexity is less for fewer than 91 vectors. One thread, so that it is the
  same every time.
  """
  from sklearn.manifold import TSNE
  import threadpoolctl

  perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
  with threadpoolctl.threadpool_limits(1):
    start = principal_components(vectors)[0](vectors)
    spread = start[:, 0].std()
    if not spread > 0:
      return np.zeros((len(vectors), 2), np.float32)
    start = (_START * start / spread).astype(np.float32)
    method = TSNE(init=start, perplexity=perplexity, random_state=seed)
    return method.fit_transform(vectors.astype(np.float64))


def principal_components(
    vectors: np.ndarray,
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
  """The directions in which vectors [n, D] vary most, each with a fixed sign.

  Returns:
    A projection of vectors [m, D] on the first two, float64 [m, 2], and the
    shares of the variance, float64 [D], which add up to 1; zeros both if all
    vectors are equal.
  """
  from sklearn.decomposition import PCA

  shares = np.zeros(vectors.shape[1])
  # Far from the origin, small variances would be lost to rounding.
  origin = vectors[0].astype(np.float64)
  centred = vectors - origin
  # Numbers whose squares vanish are no variance either.
  if not np.square(centred).any():
    return lambda points: np.zeros((len(points), 2)), shares
  method = PCA(svd_solver='covariance_eigh').fit(centred)
  shares[: method.n_components_] = method.explained_variance_ratio_
  return lambda points: method.transform(points - origin)[:, :2], shares


def tsne_figure(analyses: Sequence[Analysis], mapped: int) -> Figure:
  """A t-SNE map of each model, as in figure 2 of Dong et al. 2022."""
  panels, sample = [], analyses[0].sample
  for analysis in analyses:
    queries, passages = analysis.vectors.first(mapped)
    both = tsne(np.concatenate([queries, passages]), sample.seed)
    share = analysis.numbers.get('separability')
    note = 'not measured' if share is None else f'{share:.1%}'
    one, other = np.split(both, [len(queries)])
    panels.append(Panel(analysis.name, f'told apart: {note}', one, other))
  unknown = (
      '; not measured where most texts are equal or hang together by'
      ' relevance, so that no folds part them'
  ) * any('separability' not in a.numbers for a in analyses)
  return _maps(
      panels, sample, ('x', 'y'),
      name='tsne',
      title='Queries and passages on a t-SNE map',
      caption=f'{_drawn(sample, mapped)}, at random; perplexity 30, Euclidean'
      ' distances of unit vectors, started from PCA. "Told apart" is how often'
      ' a linear classifier, cross-validated, tells the towers apart by the'
      ' vectors themselves: 50% where the two spaces coincide, 100% where they'
      f' are separate{unknown}. {_where(analyses)}',
  )


def pca_figures(analyses: Sequence[Analysis], mapped: int) -> list[Figure]:
  """The first two principal components, and the variance of all."""
  panels, cumulative, sample = [], {}, analyses[0].sample
  for analysis in analyses:
    # As many of each tower, so that neither decides the directions.
    size = min(len(sample.queries), len(sample.passages))
    project, shares = principal_components(
        np.concatenate(analysis.vectors.first(size))
    )
    cumulative[analysis.name] = np.cumsum(shares)
    first, second = shares[:2]
    labels = f'component 1 ({first:.1%})', f'component 2 ({second:.1%})'
    note = f'{first + second:.1%} of the variance'
    one, other = map(project, analysis.vectors.first(mapped))
    panels.append(Panel(analysis.name, note, one, other, labels))
  pca = _maps(
      panels, sample, ('component_1', 'component_2'),
      name='pca',
      title='Queries and passages on their principal components',
      caption=f'{_drawn(sample, mapped)}, at random; components of both towers'
      f' together, of {_drawn(sample)}. In brackets each component\'s share of'
      f' the variance. {_where(analyses)}',
  )
  variance = Figure(
      name='variance',
      title='Variance that the first components explain',
      caption='A curve that rises late is of vectors that use many dimensions;'
      ' the legend says how many components hold 90% of the variance.'
      f' {_drawn(sample)}, both towers together. {_where(analyses)}',
      columns=_columns(
          ('model', 'components', 'explained_variance'),
          [
              (name, count, share)
              for name, shares in cumulative.items()
              for count, share in enumerate(shares.tolist(), 1)
          ],
      ),
      inches=drawing.curve_inches(len(cumulative)),
      draw=lambda canvas: _draw_variance(canvas, cumulative),
  )
  return [pca, variance]


def _draw_variance(canvas: Any, shares: Mapping[str, np.ndarray]) -> None:
  axis, ends = canvas.subplots(), [2]
  for number, (name, cumulative) in enumerate(shares.items()):
    needed = int(np.searchsorted(cumulative, 0.9)) + 1
    words = f'90% in {needed:,} of {len(cumulative):,}'
    if cumulative[-1]:
      ends.append(int(np.searchsorted(cumulative, _ENOUGH)) + 1)
    else:
      words = 'none, as all vectors are equal'
    counts = np.arange(1, len(cumulative) + 1)
    _plot(canvas, axis, number, f'{name}: {words}', counts, cumulative)
  axis.set(xscale='log', xlim=(1, max(ends)), ylim=(0, 1.02))
  axis.set(xlabel='principal components', ylabel='explained variance')
  axis.xaxis.set_major_formatter(lambda count, _: f'{count:,.0f}')
  drawing.percent(axis)
  canvas.legend(loc='outside upper left', ncols=1, handlelength=2.2)


def _plot(
    canvas: Any, axis: Any, number: int, label: str, x: Any, y: Any
) -> None:
  label = drawing.fitted(label, canvas.get_figwidth() - 0.6)
  style = drawing.model_style(number)
  axis.plot(x, y, label=label, linewidth=1.8, **style)


def _maps(
    panels: Sequence[Panel], sample: Sample, axes: tuple[str, str], **words: str
) -> Figure:
  """A panel a model, with a row of numbers a point."""
  rows = [
      (panel.title, tower, id_of(i), *point)
      for panel in panels
      for tower, points, id_of in (
          ('query', panel.queries, sample.query_id),
          ('passage', panel.passages, sample.passage_id),
      )
      for i, point in enumerate(points.tolist())
  ]
  return Figure(
      **words,
      columns=_columns(('model', 'tower', 'id', *axes), rows),
      inches=drawing.map_inches(panels),
      draw=lambda canvas: drawing.draw_maps(canvas, panels),
  )


def _columns(
    names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> dict[str, list[Any]]:
  return dict(zip(names, map(list, zip(*rows))))


def top_cosine_figure(analyses: Sequence[Analysis]) -> Figure:
  """Cosines of queries and their best hits, as in figure 5 of SamToNe."""
  sample = analyses[0].sample
  # A cosine may be above 1 by rounding.
  cosines = {a.name: np.minimum(a.vectors.top_cosines, 1) for a in analyses}
  everything = np.concatenate(list(cosines.values()))
  # The small number keeps a bound that is a multiple of the step where it is.
  low = np.floor(everything.min() / _STEP + 1e-4) * _STEP
  high = max(np.ceil(everything.max() / _STEP - 1e-4) * _STEP, low + _STEP)
  return _histograms(
      cosines,
      lambda values, median: f'median {median:.3f}',
      np.linspace(low, high, _BINS + 1),
      ('cosine of a query and its top-1 passage', 'share of queries'),
      name='top1_cosine',
      title='How near a query\'s best hit is',
      caption=f'Cosine of each of {len(sample.queries):,} queries with the'
      f' nearest of {_searched(sample)}, found exactly. At 1 both have one'
      f' direction; marks on the axis are medians. {_where(analyses)}',
  )


def ratio_figure(analyses: Sequence[Analysis]) -> Figure:
  """Ratios of similarities, as in figure 6 of SamToNe."""
  sample = analyses[0].sample
  ratios = {a.name: ratios_of(a.vectors, sample) for a in analyses}
  outside = ', '.join(
      f'{name} {1 - share_within(values, *_RATIO_EDGES[[0, -1]]):.1%}'
      for name, values in ratios.items()
  )
  left_out = sum(DRAWS - len(values) for values in ratios.values())
  passage = 'a passage that is relevant for query j'
  if not sample.has_pairs:
    passage = 'a passage drawn at random, since none is judged'
  draws = len(next(iter(ratios.values())))
  count = len(sample.pair_queries if sample.has_pairs else sample.queries)
  return _histograms(
      ratios,
      lambda values, median: f'median {median:.2f},'
      f' {share_within(values, *NEAR_ONE):.0%} within 0.1 of 1',
      _RATIO_EDGES,
      (r'$\cos(q_i, q_j)\,/\,\cos(q_i, p_j)$', 'share of pairs'),
      NEAR_ONE,
      name='similarity_ratio',
      title='Query-query over query-passage similarity',
      caption=f'cos(q_i, q_j) / cos(q_i, p_j) of {draws:,} random pairs i, j of'
      f' {count:,} queries; p_j is {passage}. At 1 the two towers\' spaces are'
      ' balanced; the band is 0.9 to 1.1. Not shown, as outside of the axis:'
      f' {outside}. Left out, as the denominator is below {TINY:g}:'
      f' {left_out:,}. {_where(analyses)}',
  )


def _histograms(
    values: Mapping[str, np.ndarray], label: Callable[[np.ndarray, float], str],
    edges: np.ndarray, axes: tuple[str, str],
    band: tuple[float, float] | None = None, **words: str,
) -> Figure:
  """Histograms of models over each other; some values may be in no bin.

  The legend has a label of values and their median; a band is shaded.
  """
  columns, curves = {'from': edges[:-1].tolist(), 'to': edges[1:].tolist()}, []
  for name, own in values.items():
    shares = np.histogram(own, edges)[0] / max(len(own), 1)
    median = float(np.median(own)) if len(own) else float('nan')
    curves.append(Curve(f'{name}: {label(own, median)}', shares, median))
    columns[name] = shares.tolist()
  return Figure(
      **words,
      columns=columns,
      inches=drawing.curve_inches(len(curves)),
      draw=lambda canvas: drawing.draw_histograms(
          canvas, edges, curves, *axes, band
      ),
  )


def dims_figure(analyses: Sequence[Analysis]) -> Figure:
  """A curve a model: MRR over how many components are left."""
  sample = analyses[0].sample
  return Figure(
      name='dims',
      title='Quality over dims',
      caption='Mean reciprocal rank with the first components of vectors, of'
      f' length one again, by exact search of {len(sample.pair_queries):,}'
      f' queries in {_searched(sample)}. Full marks are dims that a model was'
      f' trained for. {_where(analyses)}',
      columns=_columns(
          ('model', 'dim', 'trained', 'mrr'),
          [
              (a.name, dim, int(dim in a.trained_dims), a.vectors.mrr[dim])
              for a in analyses
              for dim in sorted(a.vectors.mrr, reverse=True)
          ],
      ),
      inches=drawing.curve_inches(len(analyses)),
      draw=lambda canvas: _draw_dims(canvas, analyses),
  )


def _draw_dims(canvas: Any, analyses: Sequence[Analysis]) -> None:
  axis = canvas.subplots()
  for number, analysis in enumerate(analyses):
    dims, known = sorted(analysis.vectors.mrr), analysis.trained_dims
    heights = [analysis.vectors.mrr[dim] for dim in dims]
    label = f'{analysis.name}: {heights[-1]:.3f} with {dims[-1]}'
    _plot(canvas, axis, number, label, dims, heights)
    colour = drawing.model_style(number)['color']
    fills = [colour if dim in known else 'white' for dim in dims]
    marks = {'edgecolors': colour, 'facecolors': fills}
    axis.scatter(dims, heights, s=26, zorder=3, **marks)
  every = sorted({dim for a in analyses for dim in a.vectors.mrr})
  axis.set_xscale('log', base=2)
  axis.set_xticks(every, map(str, every))
  axis.minorticks_off()
  axis.margins(y=0.06)
  axis.set_ylim(0)
  axis.set(xlabel='components', ylabel='MRR')
  axis.grid(axis='y')
  canvas.legend(loc='outside upper left', ncols=1, handlelength=2.2)


def length_figure(analyses: Sequence[Analysis]) -> Figure:
  """Histograms of token counts, one below the other.

  Models that tokenise alike share one; queries come first.
  """
  sides: dict[tuple, tuple[np.ndarray, list[str]]] = {}
  for side in ('queries', 'passages'):
    for analysis in analyses:
      tokens, limit = analysis.lengths[side]
      key = side, limit, tokens.tobytes()
      sides.setdefault(key, (tokens, []))[1].append(analysis.name)
  rows = [
      (' '.join(models), side, *pair)
      for (side, *_), (tokens, models) in sides.items()
      for pair in zip(*(x.tolist() for x in _counts(tokens)))
  ]

  def draw(canvas: Any) -> None:
    axes = canvas.subplots(len(sides), 1, squeeze=False)[:, 0]
    for axis, ((side, limit, _), (tokens, models)) in zip(axes, sides.items()):
      of = '' if len(models) == len(analyses) else f' ({", ".join(models)})'
      cut = np.mean(tokens > limit)
      title = f'{side}{of}: median {np.median(tokens):,.0f}, {cut:.1%} cut'
      colour = drawing.QUERY if side == 'queries' else drawing.PASSAGE
      drawing.draw_lengths(axis, *_counts(tokens), limit, title, colour)
    axes[-1].set_xlabel('tokens')

  return Figure(
      name='lengths',
      title='Tokens of queries and passages',
      caption=f'{_drawn(analyses[0].sample)}. EOS is counted; the dashed line'
      ' is how much the tower takes, the rest of a text is cut off. The longest'
      f' 1% may lie beyond the axis. {_where(analyses)}',
      columns=_columns(('models', 'side', 'tokens', 'texts'), rows),
      inches=(5.0, 2.3 * len(sides)),
      draw=draw,
  )


def _counts(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The numbers of tokens that occur, and how often."""
  return np.unique(tokens, return_counts=True)
