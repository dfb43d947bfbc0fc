"""Columns of one's own, from the examples of a dataset to a batch."""

import math

import cache_words
from cache_words import TOKENIZER
import numpy as np
import pytest
import text_reading

from dualenc_jax.data import Batches, Packed, Padded, prepare
from dualenc_jax.data.batches import abstract_batch
from dualenc_jax.data.columns import collect_extra, Column, WEIGHTS
from dualenc_jax.data.dataset import example
from dualenc_jax.utils.errors import UserError

SCORES = Column('scores', rank=1, per='candidate')
COUNT = 60


class Scored(cache_words.Words):
  """Every text's score is its fingerprint's, of no score in every fifth."""

  extra_columns = (WEIGHTS, SCORES)

  def example(self, number):
    row = super().example(number)
    if number % 5:
      row['scores'] = [score(row['passage']), *map(score, row['negatives'])]
    return row if number % 7 else row | {'weights': number / 2}


def score(text):
  return float(np.float32(sum(text.encode()) / 7))


@pytest.fixture(scope='module')
def caches(tmp_path_factory):
  """Of the examples with scores and weights, and of others without."""
  folder = tmp_path_factory.mktemp('caches')
  return [
      prepare(dataset(COUNT), 'train', TOKENIZER, folder)
      for dataset in (Scored, cache_words.Words)
  ]


def make_batches(caches, k, layout=Padded(), cells=1):
  rates = [1 / len(caches)] * len(caches)
  return Batches(
      caches, 12, 0, 8, 16, k, rates, layout, cells, (WEIGHTS, SCORES)
  )


def by_text():
  """{(tokens of the passage, of a candidate): score or NaN}, and weights."""
  scores, weights = {}, {}
  for row in Scored(COUNT).examples('train'):
    texts = [row['passage'], *row['negatives']]
    rows = TOKENIZER.encode_passages(texts)
    found = row.get('scores', [math.nan] * len(texts))
    own = tuple(rows.row(0).tolist())
    weights[own] = row.get('weights', 1.0)
    for i, value in enumerate(found):
      scores[own, tuple(rows.row(i).tolist())] = value
  return scores, weights


@pytest.mark.parametrize(
    'k, layout, cells', [(0, Packed(), 4), (2, Packed(), 4), (5, Padded(), 1)]
)
def test_values_go_where_their_queries_and_candidates_go(
    caches, k, layout, cells
):
  scores, weights = by_text()
  data = make_batches(caches[:1], k, layout, cells)
  real = 0
  for step in range(12):  # More than two epochs: the negatives rotate.
    batch = data(step)
    assert batch['scores'].shape == (12, 1 + k)
    assert batch['scores'].dtype == batch['weights'].dtype == np.float32
    for row, (_, passage, negatives, _) in enumerate(
        text_reading.pairs_of(batch, k)
    ):
      assert batch['weights'][row] == weights[tuple(passage)]
      want = [
          scores[tuple(passage), tuple(text)] if text else math.nan
          for text in (passage, *negatives)
      ]
      np.testing.assert_array_equal(batch['scores'][row], want)
      real += np.isfinite(want[1:]).sum()
  assert real or not k


def test_a_source_without_the_column_has_its_default(caches):
  alone = make_batches(caches[1:], 2)(0)
  assert (alone['weights'] == 1).all() and np.isnan(alone['scores']).all()
  both = make_batches(caches, 2)
  found = np.concatenate([both(step)['scores'][:, 0] for step in range(8)])
  assert 0.3 < np.isfinite(found).mean() < 0.5


def test_abstract_batches_and_hosts_have_them(caches):
  data = make_batches(caches, 2, cells=4)
  batch = data(3)
  abstract = abstract_batch(
      data.shapes[0], 12, 4, 2, np.zeros, (WEIGHTS, SCORES)
  )
  assert abstract.keys() == batch.keys()
  halves = [data(3, cells) for cells in (slice(0, 2), slice(2, 4))]
  for name in ('weights', 'scores'):
    assert abstract[name].shape == batch[name].shape
    assert abstract[name].dtype == batch[name].dtype
    np.testing.assert_array_equal(
        np.concatenate([half[name] for half in halves]), batch[name]
    )


def test_the_cache_is_named_after_its_columns_in_training_only(tmp_path):
  kept, without = (
      [
          prepare(dataset(20), split, TOKENIZER, tmp_path).header
          for split in ('train', 'test')
      ]
      for dataset in (Scored, cache_words.Words)
  )
  assert kept[0]['columns'].keys() - without[0]['columns'] == {
      'weights', 'scores'
  }
  assert kept[0] != without[0] and kept[1] == without[1]
  assert len(list(tmp_path.glob('words-train-*/header.json'))) == 2
  assert len(list(tmp_path.glob('words-test-*/header.json'))) == 1


@pytest.mark.parametrize('value, words', [
    ({'scores': [1.0] * 3}, 'f:7.*scores.* 3 values; expected 2'),
    ({'weights': 'heavy'}, "f:7.*'weights'.*'heavy'.*float32"),
])
def test_a_bad_value_is_named_with_its_place(tmp_path, value, words):
  class Bad(Scored):

    def example(self, number):
      return example('q', 'p', negatives=['n'], location='f:7') | value

  with pytest.raises(UserError, match=words):
    prepare(Bad(3), 'train', TOKENIZER, tmp_path)


@pytest.mark.parametrize('name', ['query', 'query_ids', 'step', 'scores'])
def test_names_that_are_in_use(name):
  class Bad(Scored):
    extra_columns = (Column(name, per='query'),)

  with pytest.raises(UserError, match=f'Bad.*{name!r} is in use'):
    collect_extra([Scored(3), Bad(3)])
