"""Maps, and the figures' columns and captions, against counts of their own."""

import re

from matplotlib.figure import Figure as Canvas
import numpy as np
import pytest
import sentencepiece
import sklearn.decomposition
import toy_set

from dualenc_jax.analysis import analyse, figures, sample as sample_lib
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.data import Tokenizer, Vocabulary

STEPS = {'one': 1200, 'two': 7}
VOCABULARY = Vocabulary('python_code_8k')


@pytest.fixture(scope='module')
def both():
  """Two models on the toy set, whose towers the first does not tell apart."""
  sample = sample_lib.draw(toy_set.toy_set(), 1000, seed=3)
  models = [
      toy_set.analysed(name, step, sample, 2 * i)
      for i, (name, step) in enumerate(STEPS.items())
  ]
  models[1].numbers['separability'] = 0.5
  return models


def drawn(figure):
  canvas = Canvas()
  figure.draw(canvas)
  return canvas


def test_every_best_hit_is_in_a_bin(both):
  figure = figures.top_cosine_figure(both)
  words = 'each of 30 queries with the nearest of the 40 passages'
  assert words in figure.caption
  columns = figure.columns
  low, high = np.array(columns['from']), np.array(columns['to'])
  for model in both:
    cosines = model.vectors.top_cosines[:, None]
    counts = np.sum((cosines >= low) & (cosines < high), axis=0)
    np.testing.assert_allclose(columns[model.name], counts / 30, atol=1e-9)
    assert sum(columns[model.name]) == pytest.approx(1)


def test_ratios_shown_and_not_shown_are_all(both):
  figure = figures.ratio_figure(both)
  assert 'p_j is a passage that is relevant for query j' in figure.caption
  assert '50,000 random pairs i, j of 29 queries' in figure.caption
  outside = re.search(r'one (\d+\.\d)%, two (\d+\.\d)%', figure.caption)
  for name, share in zip(STEPS, outside.groups()):
    shown = sum(figure.columns[name])
    assert 100 * (1 - shown) == pytest.approx(float(share), abs=0.06)
  assert (figure.columns['from'][0], figure.columns['to'][-1]) == (-1, 3)


def test_towers_are_told_apart_where_texts_differ(both):
  figure = figures.tsne_figure(both, 12)
  assert 'separate; not measured where most texts are' in figure.caption
  notes = [axis.texts[0].get_text() for axis in drawn(figure).axes]
  assert notes == ['told apart: not measured', 'told apart: 50.0%']
  sample = sample_lib.draw(toy_set.toy_set(14, 14, judged=False), 1000)
  towers = np.repeat(np.eye(2, dtype='float32'), 14, axis=0)
  vectors = toy_set.embed(sample, towers[:14], towers[14:])
  numbers = analyse.numbers(vectors, sample)
  assert numbers['separability'] == 1
  # Without judgements nothing is of pairs.
  assert not {'alignment', 'repeated_positives'} & {*numbers}


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
      np.zeros(0, np.int64),
      {},
  )
  numbers = analyse.numbers(vectors, sample)
  assert numbers == numbers | {
      'near_duplicate_queries': 1, 'uniformity_passages': 0,
      'alignment': pytest.approx(2 * count - 2),
      'positive_query_cosine': pytest.approx(2 - count),
  }
  assert 'positive_negative_cosine' not in numbers
  model = [toy_set.of_vectors('one', 3, sample, vectors)]
  pca, variance = figures.pca_figures(model, 12)
  top = figures.top_cosine_figure(model)
  assert sum(top.columns['one']) == pytest.approx(1)
  for figure in (
      figures.tsne_figure(model, 12), pca, variance, top,
      figures.ratio_figure(model),
  ):
    drawn(figure)
  shares = variance.columns['explained_variance']
  np.testing.assert_allclose(shares, [count - 1.0] * 16)


def test_numbers_of_the_toy_set(both):
  vectors, sample = both[0].vectors, both[0].sample
  numbers = analyse.numbers(vectors, sample)
  # 26 of the 40 passages are one text once they are cut to 16 tokens.
  assert 'separability' not in numbers
  cosines = np.sum(vectors.queries[sample.pair_queries] * vectors.positives, 1)
  assert numbers['alignment'] == pytest.approx(2 - 2 * cosines.mean(), rel=1e-5)
  assert numbers['duplicate_passages'] == pytest.approx((40 - 15) / 40)
  assert numbers['duplicate_queries'] == 0
  different = len({*sample.pair_passages.tolist()})
  assert numbers['repeated_positives'] == pytest.approx(1 - different / 29)
  assert numbers['near_duplicate_passages'] == 0
  assert all(isinstance(value, float) for value in numbers.values())


def test_maps_name_every_point(both):
  pca, variance = figures.pca_figures(both, 12)
  for figure in (figures.tsne_figure(both, 12), pca):
    models = 'one (step 1,200), two (step 7); seed 3.'
    assert f'toy, split test; {models}' in figure.caption
    assert '12 of 30 queries and 12 of 40 passages' in figure.caption
    assert figure.columns['model'] == ['one'] * 24 + ['two'] * 24
    assert figure.columns['tower'] == (['query'] * 12 + ['passage'] * 12) * 2
    sample = both[0].sample
    ids = [id_of(i) for id_of in (sample.query_id, sample.passage_id)
           for i in range(12)]
    assert figure.columns['id'] == ids * 2
  shares = np.array(variance.columns['explained_variance']).reshape(2, -1)
  assert shares.shape[1] == toy_set.DIM
  np.testing.assert_allclose(shares[:, -1], 1)
  assert (np.diff(shares, axis=1) >= 0).all()


@pytest.mark.parametrize('count', [50, 5])
def test_components_equal_those_of_a_full_decomposition(count):
  vectors = toy_set.unit_vectors(count) * np.linspace(3, 0.1, toy_set.DIM) + 2
  project, shares = figures.principal_components(vectors)
  vectors = vectors.astype(np.float64)
  expected = sklearn.decomposition.PCA(svd_solver='full').fit(vectors)
  ratios = expected.explained_variance_ratio_
  np.testing.assert_allclose(shares[: len(ratios)], ratios, atol=1e-9)
  assert len(shares) == toy_set.DIM and not shares[len(ratios) :].any()
  # The greatest coordinate of a direction is positive.
  directions = expected.components_[:2]
  greatest = np.take_along_axis(
      directions, np.abs(directions).argmax(axis=1)[:, None], axis=1
  )
  found = (vectors - vectors.mean(axis=0)) @ (directions * np.sign(greatest)).T
  np.testing.assert_allclose(project(vectors), found, atol=1e-8)


def test_lengths_are_not_cut_and_models_that_tokenise_alike_share_a_panel():
  sample = sample_lib.draw(toy_set.toy_set(), 1000)
  counts = sample.token_counts(Tokenizer(VOCABULARY, 8, 10))
  texts = {
      'queries': [f'find the row {i}\tof it' for i in sample.queries],
      'passages': ['row ' * (i + 1) for i in sample.passages],
  }
  encode = sentencepiece.SentencePieceProcessor(
      model_file=str(VOCABULARY.file)
  ).encode
  # And one for EOS.
  expected = {k: [len(encode(x)) + 1 for x in own] for k, own in texts.items()}
  assert {side: x.tolist() for side, x in counts.items()} == expected
  models = []
  for name, limit in (('a', 8), ('b', 9), ('c', 8)):
    limits = {'queries': limit, 'passages': 10}
    lengths = {side: (counts[side], most) for side, most in limits.items()}
    models.append(toy_set.of_vectors(name, 3, sample, None, lengths=lengths))
  figure = figures.length_figure(models)
  columns = figure.columns
  assert sum(columns['texts']) == 2 * 30 + 40
  assert list(dict.fromkeys(zip(columns['side'], columns['models']))) == [
      ('queries', 'a c'), ('queries', 'b'), ('passages', 'a b c')
  ]
  titles = [axis.get_title('left') for axis in drawn(figure).axes]
  cut = f'{np.mean(counts["passages"] > 10):.1%} cut'
  assert titles[2].startswith('passages: median ') and cut in titles[2]


def test_the_figure_of_dims():
  sample = sample_lib.draw(toy_set.toy_set(), 1000, seed=3)
  models = [
      toy_set.of_vectors(
          name, 1, sample, Vectors(*[np.zeros((0, dim))] * 6, mrr),
          provenance={'checkpoint_step': 1, 'trained_dims': trained},
      )
      for name, dim, mrr, trained in (
          ('a', 16, {16: 0.5, 8: 0.25}, (8,)),
          ('b', 32, {32: 0.75, 8: 0.5}, ()),
      )
  ]
  figure = figures.dims_figure(models)
  assert figure.columns == {
      'model': ['a', 'a', 'b', 'b'], 'dim': [16, 8, 32, 8],
      'trained': [1, 1, 1, 0], 'mrr': [0.5, 0.25, 0.75, 0.5],
  }
  assert 'of 29 queries in the 40 passages' in figure.caption
  (axis,) = drawn(figure).axes
  curves = [line.get_xydata().tolist() for line in axis.lines]
  assert curves == [[[8, 0.25], [16, 0.5]], [[8, 0.5], [32, 0.75]]]
  assert [t.get_text() for t in axis.get_xticklabels()] == ['8', '16', '32']
