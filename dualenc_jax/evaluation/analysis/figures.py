"""Figures of the towers: maps by t-SNE and PCA, and histograms of cosines."""

from collections.abc import Callable, Mapping, Sequence
import itertools
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation.analysis.embedding_space import (
  Analysis,
  bit_shares,
  dimensional_efficiency,
  NEAR_ONE,
  POSITIVES,
)
from dualenc_jax.evaluation.analysis.vectors import DRAWS, share_within
from dualenc_jax.utils import figure as figure_lib, files
from dualenc_jax.utils.figure import Figure, fit_text, PASSAGE, QUERY

_PERPLEXITY = 30
_BINS = 40
# Bounds of the cosines' axis are multiples of this.
_STEP = 0.05
_RATIO_EDGES = np.linspace(-1, 3, 81)
# Colours of models' curves, which are not those of towers.
_COLOURS = ('#0f766e', '#b8327a', '#7c5a00', '#5b4bc4', '#64748b', '#a33b20')
_LINES = ('-', '--', '-.', ':')


def write(
    analyses: Sequence[Analysis], folder: pathlib.Path, mapped: int
) -> None:
  """Writes all figures of one sample, and analysis.json, to a folder.

  Maps show the first `mapped` queries, and as many passages. analysis.json has
  the data and the sample; `name`, provenance and `numbers` of the one model, or
  a list `models` of these; and `figures`: title, caption and files of each.
  """
  sample = analyses[0].sample
  figures = [
      tsne_figure(analyses, mapped),
      pca_figure(analyses, mapped),
      top_cosine_figure(analyses),
      bits_figure(analyses),
  ]
  if sample.has_pairs:
    figures += [ratio_figure(analyses), positives_figure(analyses)]
  models = [
      {'name': a.name, **a.provenance, 'numbers': a.numbers} for a in analyses
  ]
  facts = {
      **analyses[0].data,
      'queries': len(sample.queries),
      'passages': len(sample.passages),
      'passages_in_corpus': len(sample.retrieval_set.corpus),
      'mapped': mapped,
      'draw_seed': sample.seed,
      **(models[0] if len(models) == 1 else {'models': models}),
      'figures': [figure_lib.save(figure, folder) for figure in figures],
  }
  files.write_json(folder / 'analysis.json', facts)


def _describe_source(analyses: Sequence[Analysis]) -> str:
  """Names data, models and seed, at the end of a caption."""
  data, seed = analyses[0].data, analyses[0].sample.seed
  steps = (a.provenance.get('checkpoint_step') for a in analyses)
  models = ', '.join(
      a.name if step is None else f'{a.name} (step {step:,})'
      for a, step in zip(analyses, steps)
  )
  return f'{data["label"]}, split {data["split"]}; {models}; seed {seed}.'


def tsne(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
  """The t-SNE map of vectors [n, D]: float32 [n, 2] (van der Maaten 2008).

  It starts from PCA (Kobak and Berens 2019), and runs on one thread, so that it
  is the same every time. Equal vectors are all at 0.
  """
  from sklearn.manifold import TSNE
  import threadpoolctl

  if _are_equal(vectors):
    return np.zeros((len(vectors), 2), np.float32)
  perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
  method = TSNE(init='pca', perplexity=perplexity, random_state=seed)
  with threadpoolctl.threadpool_limits(1):
    return method.fit_transform(vectors.astype(np.float64))


def pca(vectors: np.ndarray) -> np.ndarray:
  """Vectors [n, D] in the two directions in which they vary most: [n, 2].

  Equal vectors are all at 0.
  """
  from sklearn.decomposition import PCA

  if _are_equal(vectors):
    return np.zeros((len(vectors), 2))
  return PCA(2, svd_solver='full').fit_transform(vectors.astype(np.float64))


def _are_equal(vectors: np.ndarray) -> bool:
  return not np.ptp(vectors, axis=0).any()


def tsne_figure(analyses: Sequence[Analysis], mapped: int) -> Figure:
  """A t-SNE map of each model, as in figure 2 of Dong et al. 2022."""
  return _map_figure(
      analyses, mapped, lambda vectors: tsne(vectors, analyses[0].sample.seed),
      'perplexity 30, Euclidean distances of unit vectors. Separability is the'
      ' accuracy of a linear classifier of the vectors themselves: 50% where'
      ' the towers\' spaces coincide, 100% where they are separate.',
      name='tsne',
      title='Queries and passages on a t-SNE map',
  )


def pca_figure(analyses: Sequence[Analysis], mapped: int) -> Figure:
  """The first two principal components, as in DAFT's figures 1, 3 and 5."""
  return _map_figure(
      analyses, mapped, pca,
      'the first two principal components of both towers together.',
      name='pca',
      title='Queries and passages on their principal components',
  )


def _map_figure(
    analyses: Sequence[Analysis], mapped: int,
    project: Callable[[np.ndarray], np.ndarray], how: str, name: str, title: str
) -> Figure:
  """A panel a model, with a row of numbers a point."""
  maps, rows, sample = [], [], analyses[0].sample
  queries, passages = sample.queries[:mapped], sample.passages[:mapped]
  towers = np.repeat(['query', 'passage'], [len(queries), len(passages)])
  ids = [
      *map(sample.query_id, range(len(queries))),
      *map(sample.passage_id, range(len(passages))),
  ]
  for analysis in analyses:
    vectors = analysis.vectors
    points = project(
        np.concatenate([vectors.queries[:mapped], vectors.passages[:mapped]])
    )
    share = analysis.numbers.get('separability')
    note = 'not measured' if share is None else f'{share:.1%}'
    maps.append((analysis.name, f'separability {note}', points, towers))
    rows += [
        (analysis.name, tower, text_id, *point)
        for tower, text_id, point in zip(towers.tolist(), ids, points.tolist())
    ]
  # At most three panels are side by side.
  width, side = min(len(maps), 3), 4.6 if len(maps) == 1 else 2.7
  height = -(-len(maps) // width)

  def draw(canvas: Any) -> None:
    axes = canvas.subplots(height, width, squeeze=False).ravel()
    for axis, panel in itertools.zip_longest(axes, maps):
      if panel is None:
        axis.remove()
      else:
        _draw_map(axis, side, *panel)
    canvas.legend(
        *axes[0].get_legend_handles_labels(), loc='outside upper left', ncols=2
    )

  columns = zip(('model', 'tower', 'id', 'x', 'y'), map(list, zip(*rows)))
  return Figure(
      name,
      title,
      f'{len(queries):,} queries and {len(passages):,} passages, at random;'
      f' {how} {_describe_source(analyses)}',
      dict(columns),
      (side * width, (side + 0.5) * height + 0.4),
      draw,
  )


def _draw_map(
    axis: Any, inches: float, title: str, note: str, points: np.ndarray,
    towers: np.ndarray,
) -> None:
  """Draws points [n, 2], those of queries blue, those of passages orange."""
  # In a mixed order neither tower hides the other.
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
      f' nearest of {len(sample.retrieval_set.corpus):,} passages. Marks on the'
      f' axis are medians. {_describe_source(analyses)}',
  )


def bits_figure(analyses: Sequence[Analysis]) -> Figure:
  """Shares of passages with each bit, as in figures 3 and 5 of Thakur."""
  return _histogram_figure(
      {a.name: bit_shares(a.vectors.passages) for a in analyses},
      lambda values, median: 'dimensional efficiency'
      f' {dimensional_efficiency(values):.1%}',
      np.linspace(0, 1, _BINS + 1),
      ('share of passages whose bit is 1', 'share of dimensions'),
      name='bit_shares',
      title='How the bits of codes part the passages',
      caption='Each dimension by the share P of'
      f' {len(analyses[0].vectors.passages):,} passages whose component is 0 or'
      ' more, their bit in an index of bits, which says nothing at 0 and at 1.'
      ' Dimensional efficiency is 4 P (1 - P), on average. Marks on the axis'
      f' are medians. {_describe_source(analyses)}',
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


def positives_figure(analyses: Sequence[Analysis]) -> Figure:
  """Bars of s(p+, q) and s(p+, p-) of each model, as in figure 4 of PAIR."""
  rows = [
      (a.name, name, a.numbers[name], a.numbers[f'{name}_sd'])
      for a in analyses
      for name in POSITIVES
      if name in a.numbers
  ]
  models = [a.name for a in analyses]
  width = 0.36

  def draw(canvas: Any) -> None:
    axis = canvas.subplots()
    bars = zip(POSITIVES, ('$s(p^+, q)$', '$s(p^+, p^-)$'), (QUERY, PASSAGE))
    for number, (kind, label, colour) in enumerate(bars):
      own = [row for row in rows if row[1] == kind]
      drawn = axis.bar(
          [models.index(row[0]) + (number - 0.5) * width for row in own],
          [row[2] for row in own], width, yerr=[row[3] for row in own],
          color=colour, label=label, capsize=4, ecolor='#3d3d3d',
      )
      axis.bar_label(drawn, fmt='{:.3f}', padding=2, fontsize=8.5)
    axis.set_xticks(range(len(models)), [fit_text(m, 1.8) for m in models])
    axis.set_ylabel('cosine')
    axis.margins(y=0.12)
    axis.axhline(0, color='#8a8a8a', linewidth=0.8)
    axis.grid(axis='y')
    canvas.legend(loc='outside upper left', ncols=2)

  pairs = len(analyses[0].sample.pair_queries)
  columns = zip(('model', 'number', 'mean', 'sd'), map(list, zip(*rows)))
  return Figure(
      name='positive_cosines',
      title='Relevant passages, their queries and hits that are not relevant',
      caption=f'Cosine of the relevant passages of {pairs:,} queries with their'
      ' query, s(p+, q), and its mean with the query\'s 100 best hits that are'
      ' not relevant, s(p+, p-): mean and standard deviation over the passages.'
      f' {_describe_source(analyses)}',
      columns=dict(columns),
      inches=(1.6 + 1.5 * max(len(models), 2), 3.6),
      draw=draw,
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
  for name, sampled in values.items():
    shares[name] = np.histogram(sampled, edges)[0] / max(len(sampled), 1)
    medians[name] = float(np.median(sampled)) if len(sampled) else float('nan')
    bins = zip(edges.tolist(), edges[1:].tolist(), shares[name].tolist())
    rows += [(name, *one) for one in bins]

  def draw(canvas: Any) -> None:
    axis = canvas.subplots()
    if band is not None:
      axis.axvspan(*band, color='#f0f0f0', linewidth=0)
    for number, (name, median) in enumerate(medians.items()):
      dashes, shade = divmod(number, len(_COLOURS))
      colour, line = _COLOURS[shade], _LINES[dashes % len(_LINES)]
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

  # The legend takes a line for each curve.
  inches = 5.0, 3.3 + 0.2 * len(medians)
  columns = zip(('model', 'from', 'to', 'share'), map(list, zip(*rows)))
  return Figure(**words, columns=dict(columns), inches=inches, draw=draw)
