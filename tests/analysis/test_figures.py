"""The figures' columns and captions, against counts of their own."""

import re

from matplotlib.figure import Figure as Canvas
import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis import (
  figures,
  numbers as numbers_lib,
  sample as sample_lib,
  vectors as vectors_lib,
)
from dualenc_jax.analysis.sample import Setting
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.figures import figure as figure_lib

STEPS = {'one': 1200, 'two': 7}


def analysed(judged=True):
  """Two models' vectors on the toy set, and the setting."""
  sample = sample_lib.draw(toy_set.toy_set(judged=judged), 1000, seed=3)
  models = [
      vectors_lib.embed(
          name,
          toy_set.ToyEmbedder(toy_set.unit_vectors(toy_set.QUERIES, 2 * i)),
          None,
          sample,
          toy_set.unit_vectors(toy_set.PASSAGES, 2 * i + 1),
      )
      for i, name in enumerate(STEPS)
  ]
  return models, Setting('toy', 'test', sample, STEPS, 12)


@pytest.fixture(scope='module')
def both():
  return analysed()


def check_caption(caption):
  assert 'toy, split test; one (step 1,200), two (step 7); seed 3.' in caption


def test_every_best_hit_is_in_a_bin(both):
  models, setting = both
  figure = figures.top_cosine_figure(models, setting)
  check_caption(figure.caption)
  assert 'each of 30 queries with the nearest of the 40 passages' in (
      figure.caption
  )
  columns = figure.columns
  low, high = np.array(columns['from']), np.array(columns['to'])
  for vectors in models:
    cosines = vectors.top_cosines[:, None]
    counts = np.sum((cosines >= low) & (cosines < high), axis=0)
    np.testing.assert_allclose(columns[vectors.name], counts / 30, atol=1e-9)
    assert sum(columns[vectors.name]) == pytest.approx(1)


def test_best_hits_that_are_all_the_same_have_a_bin(both):
  models, setting = both
  one = type(models[0])(
      **vars(models[0]) | {'top_cosines': np.full(30, 1.0000001)}
  )
  columns = figures.top_cosine_figure([one], setting).columns
  assert sum(columns['one']) == pytest.approx(1)
  assert columns['to'][-1] - columns['from'][0] == pytest.approx(0.05)


def test_ratios_shown_and_not_shown_are_all(both):
  models, setting = both
  figure = figures.ratio_figure(models, setting)
  check_caption(figure.caption)
  assert 'p_j is a passage that is relevant for query j' in figure.caption
  assert '50,000 random pairs i, j of 29 queries' in figure.caption
  outside = re.search(r'one (\d+\.\d)%, two (\d+\.\d)%', figure.caption)
  for name, share in zip(STEPS, outside.groups()):
    shown = sum(figure.columns[name])
    assert 100 * (1 - shown) == pytest.approx(float(share), abs=0.06)
  assert (figure.columns['from'][0], figure.columns['to'][-1]) == (-1, 3)


def test_without_judgements_ratios_are_of_random_passages():
  models, setting = analysed(judged=False)
  caption = figures.ratio_figure(models, setting).caption
  assert 'p_j is a passage drawn at random' in caption
  numbers = numbers_lib.numbers(models[0], setting.sample)
  assert 'alignment' not in numbers and 'repeated_positives' not in numbers
  assert {'uniformity_passages', 'median_ratio'} < set(numbers)


def test_towers_of_which_most_texts_are_equal_are_not_told_apart(both):
  # 26 of the 40 passages are one text once they are cut.
  models, setting = both
  assert 'separability' not in numbers_lib.numbers(models[0], setting.sample)
  figure = figures.tsne_figure(models, {'one': None, 'two': 0.5}, setting)
  assert 'separate; not measured where most texts are' in figure.caption
  canvas = Canvas()
  figure.draw(canvas)
  notes = [axis.texts[0].get_text() for axis in canvas.axes]
  assert notes == ['told apart: not measured', 'told apart: 50.0%']


def test_towers_of_different_texts_are_told_apart():
  sample = sample_lib.draw(toy_set.toy_set(14, 14, judged=False), 1000)
  points = np.eye(2, dtype='float32')
  vectors = vectors_lib.embed(
      'one',
      toy_set.ToyEmbedder(np.repeat(points[:1], 14, axis=0)),
      None,
      sample,
      np.repeat(points[1:], 14, axis=0),
  )
  assert numbers_lib.numbers(vectors, sample)['separability'] == 1


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('count', [1, 2])
def test_a_collapsed_model_has_figures(both, tmp_path, count):
  _, setting = both
  sample = setting.sample
  # All queries are one vector, and all passages that vector, or another.
  points = np.eye(2, 16, dtype='float32')[[0, count - 1]]
  vectors = Vectors(
      'one',
      np.repeat(points[:1], len(sample.queries), axis=0),
      np.repeat(points[1:], len(sample.passages), axis=0),
      np.repeat(points[1:], len(sample.pair_passages), axis=0),
      np.full(len(sample.queries), 2.0 - count),
      np.full(len(sample.pair_passages), np.nan),
      np.zeros(0, np.int64),
  )
  numbers = numbers_lib.numbers(vectors, sample)
  assert numbers['near_duplicate_queries'] == 1
  assert numbers['uniformity_passages'] == 0
  assert numbers['alignment'] == pytest.approx(2 * count - 2)
  assert numbers['positive_query_cosine'] == pytest.approx(2 - count)
  assert 'positive_negative_cosine' not in numbers
  pca, variance = figures.pca_figures([vectors], setting)
  for figure in (
      figures.tsne_figure([vectors], {'one': None}, setting),
      pca,
      variance,
      figures.top_cosine_figure([vectors], setting),
      figures.ratio_figure([vectors], setting),
  ):
    figure_lib.save(figure, tmp_path)
  assert set(variance.columns['explained_variance']) == {count - 1.0}
  canvas = Canvas()
  variance.draw(canvas)
  (label,) = [text.get_text() for text in canvas.legends[0].get_texts()]
  assert label == [
      'one: none, as all vectors are equal',
      'one: 90% in 1 of 16',
  ][count - 1]


def test_numbers_of_the_toy_set(both):
  models, setting = both
  numbers = numbers_lib.numbers(models[0], setting.sample)
  cosines = np.sum(
      models[0].queries[setting.sample.pair_queries] * models[0].positives, 1
  )
  assert numbers['alignment'] == pytest.approx(2 - 2 * cosines.mean(), rel=1e-5)
  # Passages of 15 words or more are one text once they are cut to 16 tokens.
  assert numbers['duplicate_passages'] == pytest.approx((40 - 15) / 40)
  assert numbers['duplicate_queries'] == 0
  different = len(set(setting.sample.pair_passages.tolist()))
  assert numbers['repeated_positives'] == pytest.approx(1 - different / 29)
  assert numbers['near_duplicate_passages'] == 0
  assert all(isinstance(value, float) for value in numbers.values())


@pytest.mark.parametrize('retrieved', [100, 7])
def test_positives_beside_what_is_retrieved_with_them(monkeypatch, retrieved):
  """Figure 4 of PAIR, by plain loops."""
  monkeypatch.setattr(vectors_lib, '_RETRIEVED', retrieved)
  (one, _), setting = analysed()
  passages = toy_set.unit_vectors(toy_set.PASSAGES, 1).astype(np.float64)
  queries = toy_set.unit_vectors(toy_set.QUERIES, 0).astype(np.float64)
  to_query, to_negatives = [], []
  for place, passage in zip(
      setting.sample.pair_queries, setting.sample.pair_passages
  ):
    query = int(setting.sample.query_id(place)[1:])
    best = np.argsort(-passages @ queries[query])[:retrieved]
    negatives = [i for i in best if i not in (query, 30 + query % 10)]
    to_query.append(passages[passage] @ queries[query])
    to_negatives.append(
        np.mean([passages[passage] @ passages[i] for i in negatives])
    )
  numbers = numbers_lib.numbers(one, setting.sample)
  assert numbers['positive_query_cosine'] == pytest.approx(
      np.mean(to_query), abs=1e-6
  )
  assert numbers['positive_negative_cosine'] == pytest.approx(
      np.mean(to_negatives), abs=1e-6
  )


def test_maps_name_every_point(both):
  models, setting = both
  pca, variance = figures.pca_figures(models, setting)
  for figure in (
      figures.tsne_figure(models, {'one': 0.5, 'two': 0.75}, setting),
      pca,
  ):
    check_caption(figure.caption)
    assert '12 of 30 queries and 12 of 40 passages' in figure.caption
    assert figure.columns['model'] == ['one'] * 24 + ['two'] * 24
    assert figure.columns['tower'] == (['query'] * 12 + ['passage'] * 12) * 2
    ids = [setting.sample.query_id(i) for i in range(12)]
    ids += [setting.sample.passage_id(i) for i in range(12)]
    assert figure.columns['id'] == ids * 2
  shares = np.array(variance.columns['explained_variance']).reshape(2, -1)
  assert shares.shape[1] == toy_set.DIM
  np.testing.assert_allclose(shares[:, -1], 1)
  assert (np.diff(shares, axis=1) >= 0).all()
