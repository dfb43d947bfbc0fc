"""Figures of the towers: maps by t-SNE and PCA, and histograms of cosines."""

from collections.abc import Callable, Mapping, Sequence
import itertools
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation.analysis.analyse import Analysis, NEAR_ONE
from dualenc_jax.evaluation.analysis.geometry import DRAWS, share_within
from dualenc_jax.evaluation.analysis.sample import Sample
from dualenc_jax.utils import figure as figure_lib, files
from dualenc_jax.utils.figure import Figure, fit_text, PASSAGE, QUERY

_PERPLEXITY = 30
# Standard deviation of the first coordinate where t-SNE starts: small, so that
# points can pass each other (Kobak and Berens 2019).
_START = 1e-4
_BINS = 40
# Bounds of the cosines' axis are multiples of it.
_STEP = 0.05
_RATIO_EDGES = np.linspace(-1, 3, 81)
# Of models' curves: not those of towers, and told apart by the colour-blind.
_COLOURS = ('#0f766e', '#b8327a', '#7c5a00', '#5b4bc4', '#64748b', '#a33b20')
_LINES = ('-', '--', '-.', ':')


def write(
    analyses: Sequence[Analysis], folder: pathlib.Path, mapped: int
) -> None:
  """Writes all figures of one sample, and analysis.json, to a folder.

  Maps have the first `mapped` queries, and as many passages. analysis.json
  says of what data and sample everything is; then of one model `name`, its
  provenance and `numbers`, of several a list `models` of such; and in `figures`
  title, caption and files of each.
  """
  sample = analyses[0].sample
  figures = [
      tsne_figure(analyses, mapped),
      pca_figure(analyses, mapped),
      top_cosine_figure(analyses),
  ]
  if sample.has_pairs:
    figures.append(ratio_figure(analyses))
  models = [
      {'name': a.name, **a.provenance, 'numbers': a.numbers} for a in analyses
  ]
  facts = {
      **analyses[0].data,
      'queries': len(sample.queries),
      'passages': len(sample.passages),
      'passages_searched': len(sample.searched),
      'passages_in_corpus': len(sample.retrieval_set.corpus),
      'mapped': mapped,
      'draw_seed': sample.seed,
      **(models[0] if len(models) == 1 else {'models': models}),
      'figures': [figure_lib.save(figure, folder) for figure in figures],
  }
  files.write_json(folder / 'analysis.json', facts)


def _describe_source(analyses: Sequence[Analysis]) -> str:
  """Data, models and seed, to end a caption with."""
  data, seed = analyses[0].data, analyses[0].sample.seed
  models = ', '.join(
      f'{a.name} (step {a.provenance["checkpoint_step"]:,})' for a in analyses
  )
  return f'{data["label"]}, split {data["split"]}; {models}; seed {seed}.'


def _describe_points(sample: Sample, mapped: int) -> str:
  queries, passages = sample.queries[:mapped], sample.passages[:mapped]
  return f'{len(queries):,} queries and {len(passages):,} passages, at random'


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
    start = pca(vectors)
    spread = start[:, 0].std()
    if not spread > 0:
      return np.zeros((len(vectors), 2), np.float32)
    start = (_START * start / spread).astype(np.float32)
    method = TSNE(init=start, perplexity=perplexity, random_state=seed)
    return method.fit_transform(vectors.astype(np.float64))


def pca(vectors: np.ndarray) -> np.ndarray:
  """Vectors [n, D] in the two directions in which they vary most: [n, 2].

  Each direction has a fixed sign. Zeros if all vectors are equal.
  """
  from sklearn.decomposition import PCA

  # Far from the origin, small variances would be lost to rounding.
  centred = vectors - vectors[0].astype(np.float64)
  # Numbers whose squares vanish are no variance either.
  if not np.square(centred).any():
    return np.zeros((len(vectors), 2))
  return PCA(2, svd_solver='covariance_eigh').fit_transform(centred)


def tsne_figure(analyses: Sequence[Analysis], mapped: int) -> Figure:
  """A t-SNE map of each model, as in figure 2 of Dong et al. 2022."""
  sample = analyses[0].sample
  return _map_figure(
      analyses, mapped, lambda vectors: tsne(vectors, sample.seed),
      name='tsne',
      title='Queries and passages on a t-SNE map',
      caption=f'{_describe_points(sample, mapped)}; perplexity 30, Euclidean'
      ' distances of unit vectors, started from PCA. "Told apart" is how often'
      ' a linear classifier, cross-validated, tells the towers apart by the'
      ' vectors themselves: 50% where the two spaces coincide, 100% where they'
      f' are separate. {_describe_source(analyses)}',
  )


def pca_figure(analyses: Sequence[Analysis], mapped: int) -> Figure:
  """The first two principal components, as in DAFT's figures 1, 3 and 5."""
  return _map_figure(
      analyses, mapped, pca,
      name='pca',
      title='Queries and passages on their principal components',
      caption=f'{_describe_points(analyses[0].sample, mapped)}; the first two'
      ' principal components of both towers together.'
      f' {_describe_source(analyses)}',
  )


def _map_figure(
    analyses: Sequence[Analysis], mapped: int,
    project: Callable[[np.ndarray], np.ndarray], **words: str
) -> Figure:
  """A panel a model, with a row of numbers a point."""
  maps, rows, sample = [], [], analyses[0].sample
  for analysis in analyses:
    vectors = analysis.vectors
    towers = vectors.queries[:mapped], vectors.passages[:mapped]
    points = project(np.concatenate(towers))
    share = analysis.numbers.get('separability')
    note = 'not measured' if share is None else f'{share:.1%}'
    names = np.repeat(['query', 'passage'], list(map(len, towers)))
    maps.append((analysis.name, f'told apart: {note}', points, names))
    ids = [sample.query_id(i) for i in range(len(towers[0]))]
    ids += [sample.passage_id(i) for i in range(len(towers[1]))]
    rows += [
        (analysis.name, name, text_id, *point)
        for name, text_id, point in zip(names.tolist(), ids, points.tolist())
    ]
  # Three side by side at most.
  width, side = min(len(maps), 3), 4.6 if len(maps) == 1 else 2.7
  height = -(-len(maps) // width)

  def draw(canvas: Any) -> None:
    axes = canvas.subplots(height, width, squeeze=False).ravel()
    for axis, own in itertools.zip_longest(axes, maps):
      if own is None:
        axis.remove()
      else:
        _draw_map(axis, side, *own)
    canvas.legend(
        *axes[0].get_legend_handles_labels(), loc='outside upper left', ncols=2
    )

  columns = zip(('model', 'tower', 'id', 'x', 'y'), map(list, zip(*rows)))
  inches = side * width, (side + 0.5) * height + 0.4
  return Figure(**words, columns=dict(columns), inches=inches, draw=draw)


def _draw_map(
    axis: Any, inches: float, title: str, note: str, points: np.ndarray,
    towers: np.ndarray,
) -> None:
  """Draws points [n, 2], those of queries blue, those of passages orange."""
  # In a mixed order, so that neither tower hides the other.
  order = np.random.default_rng(0).permutation(len(points))
  axis.scatter(
      *points[order].T,
      s=np.clip(8000 / len(points), 6, 26),
      c=np.where(towers == 'query', QUERY, PASSAGE)[order],
      alpha=0.8,
      linewidths=0.3,
      edgecolors='white',
  )
  for name, colour in (('queries', QUERY), ('passages', PASSAGE)):
    axis.scatter([], [], color=colour, label=name)
  axis.set(aspect='equal', adjustable='datalim', box_aspect=1)
  axis.set(xticks=[], yticks=[])
  axis.set_title(f'{fit_text(title, inches)}\n{note}', loc='left', fontsize=10)
  axis.spines[:].set(visible=True, color='#d4d4d4')


def top_cosine_figure(analyses: Sequence[Analysis]) -> Figure:
  """Cosines of queries and their best hits, as in figure 5 of SamToNe."""
  sample = analyses[0].sample
  # A cosine may be above 1 by rounding.
  cosines = {a.name: np.minimum(a.vectors.top_cosines, 1) for a in analyses}
  everything = np.concatenate(list(cosines.values()))
  # The small number keeps a bound that is a multiple of the step where it is.
  low = np.floor(everything.min() / _STEP + 1e-4) * _STEP
  high = max(np.ceil(everything.max() / _STEP - 1e-4) * _STEP, low + _STEP)
  return _histogram_figure(
      cosines,
      lambda values, median: f'median {median:.3f}',
      np.linspace(low, high, _BINS + 1),
      ('cosine of a query and its top-1 passage', 'share of queries'),
      name='top1_cosine',
      title='How near a query\'s best hit is',
      caption=f'Cosine of each of {len(sample.queries):,} queries with the'
      f' nearest of {len(sample.searched):,} passages, found exactly. At 1 both'
      ' have one direction; marks on the axis are medians.'
      f' {_describe_source(analyses)}',
  )


def ratio_figure(analyses: Sequence[Analysis]) -> Figure:
  """Ratios of similarities, as in figure 6 of SamToNe."""
  sample = analyses[0].sample
  ratios = {a.name: a.vectors.ratios for a in analyses}
  outside = ', '.join(
      f'{name} {1 - share_within(values, *_RATIO_EDGES[[0, -1]]):.1%}'
      for name, values in ratios.items()
  )
  return _histogram_figure(
      ratios,
      lambda values, median: f'median {median:.2f},'
      f' {share_within(values, *NEAR_ONE):.0%} within 0.1 of 1',
      _RATIO_EDGES,
      (r'$\cos(q_i, q_j)\,/\,\cos(q_i, p_j)$', 'share of pairs'),
      NEAR_ONE,
      name='similarity_ratio',
      title='Query-query over query-passage similarity',
      caption=f'cos(q_i, q_j) / cos(q_i, p_j) of {DRAWS:,} random pairs i, j of'
      f' {len(sample.pair_queries):,} queries; p_j is a passage that is'
      ' relevant for query j. At 1 the two towers\' spaces are balanced; the'
      ' band is 0.9 to 1.1. Not shown, as outside of the axis:'
      f' {outside}. {_describe_source(analyses)}',
  )


def _histogram_figure(
    values: Mapping[str, np.ndarray], label: Callable[[np.ndarray, float], str],
    edges: np.ndarray, axes: tuple[str, str],
    band: tuple[float, float] | None = None, **words: str,
) -> Figure:
  """Histograms of models over each other; some values may be in no bin.

  The legend has a label of values and their median; a band is shaded.
  """
  shares, medians, rows = {}, {}, []
  for name, own in values.items():
    shares[name] = np.histogram(own, edges)[0] / max(len(own), 1)
    medians[name] = float(np.median(own)) if len(own) else float('nan')
    bins = zip(edges.tolist(), edges[1:].tolist(), shares[name].tolist())
    rows += [(name, *one) for one in bins]

  def draw(canvas: Any) -> None:
    axis = canvas.subplots()
    if band is not None:
      axis.axvspan(*band, color='#f0f0f0', linewidth=0)
    for number, (name, median) in enumerate(medians.items()):
      dashes, shade = divmod(number, len(_COLOURS))
      colour, line = _COLOURS[shade], _LINES[dashes % len(_LINES)]
      # Many that are opaque would be mud.
      pale = 0.3 / len(medians)
      axis.stairs(shares[name], edges, fill=True, color=colour, alpha=pale)
      words = f'{name}: {label(values[name], median)}'
      words = fit_text(words, canvas.get_figwidth() - 0.6)
      style = {'color': colour, 'linestyle': line, 'linewidth': 1.5}
      axis.stairs(shares[name], edges, label=words, **style)
      if edges[0] <= median <= edges[-1]:
        axis.axvline(median, 0, 0.04, color=colour, linewidth=2.5)
    axis.set(xlim=(edges[0], edges[-1]), xlabel=axes[0], ylabel=axes[1])
    axis.set_ylim(0)
    figure_lib.format_percent(axis)
    canvas.legend(loc='outside upper left', ncols=1, handlelength=2.2)

  # With a line of legend for each curve.
  inches = 5.0, 3.3 + 0.2 * len(medians)
  columns = zip(('model', 'from', 'to', 'share'), map(list, zip(*rows)))
  return Figure(**words, columns=dict(columns), inches=inches, draw=draw)
