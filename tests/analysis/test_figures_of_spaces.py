"""Maps and histograms: columns and captions, against counts of their own."""

import dataclasses
import io
import itertools
import math
import re

from matplotlib.figure import Figure as Canvas
import matplotlib.image
import numpy as np
import pytest
import sklearn.decomposition
import toy_set

from dualenc_jax.evaluation.analysis import embedding_space, figures
from dualenc_jax.evaluation.analysis.vectors import draw, Vectors
from dualenc_jax.retrieval import compression
from dualenc_jax.utils import figure as figure_lib

STEPS = {'one': 1200, 'two': 7}
LONG = 'a-model-name-that-is-longer-than-any-place-for-it-2026-final-version-2'


@pytest.fixture(scope='module')
def both():
  """Two models on the toy set, whose towers the first does not tell apart."""
  sample = draw(toy_set.toy_set(), 1000, seed=3)
  models = [
      toy_set.analysed(name, step, sample, 2 * i)
      for i, (name, step) in enumerate(STEPS.items())
  ]
  models[1].numbers['separability'] = 0.5
  return models


def named(both, *names):
  """As many models of these names."""
  one = both[0]
  return [toy_set.of_vectors(n, 3, one.sample, one.vectors) for n in names]


def drawn(figure):
  canvas = Canvas()
  figure.draw(canvas)
  canvas.draw_without_rendering()
  return canvas


def shares_of(figure, name):
  columns = figure.columns
  rows = zip(columns['model'], columns['share'])
  return [share for model, share in rows if model == name]


def test_every_best_hit_is_in_a_bin(both):
  figure = figures.top_cosine_figure(both)
  assert 'each of 30 queries with the nearest of 40 passages' in figure.caption
  columns = figure.columns
  bins = len(columns['from']) // 2
  low, high = (np.array(columns[end][:bins]) for end in ('from', 'to'))
  for model in both:
    cosines = model.vectors.top_cosines[:, None]
    counts = np.sum((cosines >= low) & (cosines < high), axis=0)
    shares = shares_of(figure, model.name)
    np.testing.assert_allclose(shares, counts / 30, atol=1e-9)
    assert sum(shares) == pytest.approx(1)


def ones(passages):
  """Shares of passages with a 1 as each bit of their codes."""
  codes = compression.spec('sign').fit(passages).encode(passages)
  bits = np.unpackbits(codes, axis=1).tolist()
  return [sum(column) / len(bits) for column in zip(*bits)]


def test_every_bit_is_in_a_bin(both):
  figure = figures.bits_figure(both)
  assert f'share P of {toy_set.PASSAGES} passages' in figure.caption
  bins = [*zip(figure.columns['from'], figure.columns['to'])][:40]
  for model in both:
    found = ones(model.vectors.passages)
    wanted = [sum(low <= x < high for x in found) / 16 for low, high in bins]
    assert shares_of(figure, model.name) == pytest.approx(wanted)
  legend = drawn(figure).legends[0].texts[0].get_text()
  assert legend.startswith('one: dimensional efficiency')


def test_ratios_shown_and_not_shown_are_all(both):
  figure = figures.ratio_figure(both)
  assert 'p_j is a passage that is relevant for query j' in figure.caption
  assert '50,000 random pairs i, j of 29 queries' in figure.caption
  outside = re.search(r'one (\d+\.\d)%, two (\d+\.\d)%', figure.caption)
  for name, share in zip(STEPS, outside.groups()):
    shown = sum(shares_of(figure, name))
    assert 100 * (1 - shown) == pytest.approx(float(share), abs=0.06)
  assert (figure.columns['from'][0], figure.columns['to'][-1]) == (-1, 3)


def test_towers_are_told_apart_where_texts_differ(both):
  titles = [axis.get_title('left') for axis in
            drawn(figures.tsne_figure(both, 12)).axes]
  assert titles == ['one\nseparability not measured', 'two\nseparability 50.0%']
  sample = draw(toy_set.toy_set(14, 14, judged=False), 1000)
  towers = np.repeat(np.eye(2, dtype='float32'), 14, axis=0)
  vectors = toy_set.embed(sample, towers[:14], towers[14:])
  numbers = embedding_space.measure(vectors, sample)
  assert numbers['separability'] == 1
  # Without judgements nothing is of pairs.
  assert not {'positive_query_cosine', 'median_ratio'} & {*numbers}


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('count', [1, 2])
def test_a_collapsed_model_has_figures(both, count):
  sample = both[0].sample
  # All queries are one vector, and all passages that vector, or another.
  one, other = np.eye(2, 16, dtype='float32')[[0, count - 1]]
  pairs = len(sample.pair_passages)
  vectors = Vectors(
      np.tile(one, (len(sample.queries), 1)),
      np.tile(other, (len(sample.passages), 1)),
      np.tile(other, (pairs, 1)),
      # A cosine of 1, and rounding.
      np.full(len(sample.queries), 2.0 - count + 1e-7),
      np.full(pairs, np.nan),
      np.full(pairs, 0.0),
  )
  numbers = embedding_space.measure(vectors, sample)
  assert numbers['positive_query_cosine'] == pytest.approx(2 - count)
  assert numbers['alignment'] == pytest.approx(2 * count - 2)
  assert numbers['uniformity_passages'] == 0
  assert numbers['dimensional_efficiency'] == 0
  assert 'positive_negative_cosine' not in numbers
  model = [toy_set.of_vectors('one', 3, sample, vectors)]
  model[0].numbers.update(numbers)
  top = figures.top_cosine_figure(model)
  assert sum(top.columns['share']) == pytest.approx(1)
  for figure in (
      figures.tsne_figure(model, 12), figures.pca_figure(model, 12), top,
      figures.ratio_figure(model), figures.positives_figure(model),
      figures.bits_figure(model),
  ):
    drawn(figure)


def test_numbers_of_the_toy_set(both):
  vectors, sample = both[0].vectors, both[0].sample
  numbers = embedding_space.measure(vectors, sample)
  # 26 of the 40 passages are one text once they are cut to 16 tokens.
  assert 'separability' not in numbers
  pairs = zip(vectors.queries[sample.pair_queries], vectors.positives)
  cosine = np.mean([query @ positive for query, positive in pairs])
  assert numbers['positive_query_cosine'] == pytest.approx(cosine, rel=1e-5)
  potentials = [
      math.exp(-2 * math.dist(x, y) ** 2)
      for x, y in itertools.combinations(vectors.queries.tolist(), 2)
  ]
  expected = math.log(math.fsum(potentials) / len(potentials))
  assert numbers['uniformity_queries'] == pytest.approx(expected, rel=1e-6)
  shares = ones(vectors.passages)
  efficiency = 4 * math.fsum(p * (1 - p) for p in shares) / len(shares)
  assert numbers['dimensional_efficiency'] == pytest.approx(efficiency)
  assert all(isinstance(value, float) for value in numbers.values())


def test_bars_of_relevant_passages_as_in_pair(both):
  models = []
  for model in both:
    numbers = embedding_space.measure(model.vectors, model.sample)
    models.append(dataclasses.replace(model, numbers=numbers))
  figure = figures.positives_figure(models)
  rows = list(zip(*figure.columns.values()))
  assert [row[:2] for row in rows] == [
      (name, f'positive_{other}_cosine')
      for name in STEPS for other in ('query', 'negative')
  ]
  for model, first, second in zip(both, rows[::2], rows[1::2]):
    queries = model.vectors.queries[model.sample.pair_queries]
    cosines = np.einsum(
        'pd,pd->p', queries.astype(np.float64), model.vectors.positives
    )
    for row, values in (
        (first, cosines), (second, model.vectors.negative_cosines)
    ):
      assert row[2:] == pytest.approx(
          (np.mean(values), np.sqrt(np.mean((values - values.mean()) ** 2))),
          rel=1e-6,
      )
  (axis,) = drawn(figure).axes
  heights = [bar.get_height() for bar in axis.patches]
  assert heights == [row[2] for row in rows[::2] + rows[1::2]]
  # Lines of errors are one standard deviation up and down.
  ends = [
      np.ptp([y for _, y in path.vertices]) / 2
      for lines in axis.collections for path in lines.get_paths()
  ]
  assert ends == pytest.approx([row[3] for row in rows[::2] + rows[1::2]])


def test_maps_name_every_point(both):
  for figure in figures.tsne_figure(both, 12), figures.pca_figure(both, 12):
    models = 'one (step 1,200), two (step 7); seed 3.'
    assert f'toy, split test; {models}' in figure.caption
    assert '12 queries and 12 passages' in figure.caption
    assert figure.columns['model'] == ['one'] * 24 + ['two'] * 24
    assert figure.columns['tower'] == (['query'] * 12 + ['passage'] * 12) * 2
    sample = both[0].sample
    ids = [id_of(i) for id_of in (sample.query_id, sample.passage_id)
           for i in range(12)]
    assert figure.columns['id'] == ids * 2


def test_there_are_as_many_panels_as_models_and_they_hold_all_points(both):
  for names in ('a', 'abcd', 'abcde'):
    figure = figures.pca_figure(named(both, *names), 12)
    axes = drawn(figure).axes
    assert [axis.get_title('left')[0] for axis in axes] == [*names]
    points = np.array([figure.columns['x'], figure.columns['y']])
    for axis in axes:
      low, high = np.transpose([axis.get_xlim(), axis.get_ylim()])
      assert (low < points.min(axis=1)).all()
      assert (high > points.max(axis=1)).all()
      box = axis.get_window_extent()
      scale = np.array([box.width, box.height]) / (high - low)
      assert scale[0] == pytest.approx(scale[1])


def test_models_have_curves_of_their_own(both):
  (axis,) = drawn(figures.top_cosine_figure(named(both, *'abcdefghij'))).axes
  outlines = [p for p in axis.patches if p.get_label() != '']
  looks = {(p.get_edgecolor(), p.get_linestyle()) for p in outlines}
  assert len(looks) >= 10


def test_no_name_is_cut_at_the_edge_or_runs_into_another(both):
  long = named(both, LONG, LONG + 'b', LONG + 'c')
  for figure in figures.pca_figure(long, 12), figures.top_cosine_figure(long):
    content = figure_lib.render(figure.inches, figure.draw, ['png'])['png']
    pixels = matplotlib.image.imread(io.BytesIO(content))
    frame = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    assert all((side == 1).all() for side in frame)
  figure, style = figures.pca_figure(long, 12), {'svg.fonttype': 'none'}
  content = figure_lib.render(figure.inches, figure.draw, ['svg'], style)['svg']
  words = re.findall(r'>([^<>\n]+)</t(?:ext|span)>', content.decode())
  # A panel is 2.7 inches wide.
  assert max(map(len, words)) <= 27
  assert ''.join(words).count(LONG) == 3


def test_tsne_keeps_clusters_apart_and_is_the_same_twice():
  cluster = np.repeat([0, 1, 2], 20)
  vectors = toy_set.unit_vectors(60) + 5 * np.eye(3, toy_set.DIM)[cluster]
  points = figures.tsne(vectors)
  assert points.shape == (60, 2)
  distances = np.linalg.norm(points[:, None] - points, axis=-1)
  np.fill_diagonal(distances, np.inf)
  np.testing.assert_array_equal(cluster[distances.argmin(axis=1)], cluster)
  np.testing.assert_array_equal(figures.tsne(vectors), points)


@pytest.mark.parametrize('count', [50, 5])
def test_components_equal_those_of_a_full_decomposition(count):
  vectors = toy_set.unit_vectors(count) * np.linspace(3, 0.1, toy_set.DIM) + 2
  found = figures.pca(vectors)
  full = sklearn.decomposition.PCA(2, svd_solver='full')
  expected = full.fit_transform(vectors.astype(np.float64))
  signs = np.sign(np.sum(expected * found, axis=0))
  np.testing.assert_allclose(found, expected * signs, atol=1e-8)
