"""Scores of single pairs, which depend on nothing but the two vectors."""

import numpy as np
import pytest
import search_cases
import search_reference as reference

from dualenc_jax.search import ranking


@pytest.fixture(params=search_cases.ALL, ids=lambda case: case.__name__)
def corpus(request):
  rng = np.random.default_rng(0)
  queries, passages = request.param(rng)
  return queries, passages, reference.shuffled_ids(rng, len(passages))


def test_dot_products(corpus):
  queries, passages, _ = corpus
  scores = ranking.dot_products(queries, passages)
  assert scores.dtype == np.float32
  expected = reference.scores_of(queries, passages)
  np.testing.assert_array_equal(scores, expected)


def test_next_to_a_rounding_boundary():
  # The dot products are 1 + 2^-24, half way between two float32, and that
  # plus or minus 2^-46: they round to the even neighbour, up and down.
  passages = np.zeros((3, 700), np.float32)
  passages[:, 0] = 1
  passages[:, 350] = 2**-24
  passages[:, 699] = 0, 2**-46, -(2**-46)
  query = np.ones((1, 700), np.float32)
  scores = ranking.dot_products(query, passages)
  assert scores.tolist() == [[1.0, 1.0 + 2**-23, 1.0]]


@pytest.mark.parametrize('passages_in_block', [1, 3, 40])
def test_sums_run_from_left_to_right(passages_in_block):
  # After the 1, each tiny product is lost in float64 and the sum stays half
  # way, which rounds down to even; before it they add up and tip the balance.
  # BLAS sums in lanes, so its own answer to both is the second.
  big_first = np.full(700, 2.0**-54, np.float32)
  big_first[:2] = 1, 2**-24
  query = np.ones((2, 700), np.float32)
  for passage, expected in ((big_first, 1.0), (big_first[::-1], 1 + 2**-23)):
    passages = np.repeat(passage[None], passages_in_block, axis=0)
    scores = ranking.dot_products(query, passages)
    assert scores.tolist() == [[expected] * passages_in_block] * 2


def test_scores_do_not_depend_on_blocks_or_places():
  # At 768 dims a plain float32 matmul differs in most bits between shapes.
  rng = np.random.default_rng(2)
  queries = reference.unit(rng.normal(size=(30, 768)))
  passages = reference.unit(rng.normal(size=(1003, 768)))
  passages[1000:] = passages[:3]
  whole = ranking.dot_products(queries, passages)
  np.testing.assert_array_equal(whole[:, 1000:], whole[:, :3])
  for first, end in ((0, 1), (5, 12), (100, 612)):
    part = ranking.dot_products(queries[3:9], passages[first:end])
    np.testing.assert_array_equal(part, whole[3:9, first:end])
  rows = rng.integers(0, 1003, (30, 7))
  some = ranking.of_candidates(queries, passages, rows)
  np.testing.assert_array_equal(some, np.take_along_axis(whole, rows, axis=1))


def test_of_candidates(corpus):
  queries, passages, _ = corpus
  rng = np.random.default_rng(3)
  rows = rng.integers(-1, len(passages), (len(queries), 20))
  rows[0] = -1
  scores = ranking.of_candidates(queries, passages, rows)
  all_scores = reference.scores_of(queries, passages)
  expected = np.where(
      rows < 0, -np.inf, np.take_along_axis(all_scores, rows, axis=1)
  )
  np.testing.assert_array_equal(scores, expected)


def test_rankings_on_the_host(corpus, monkeypatch):
  monkeypatch.setattr(ranking, '_QUERY_BLOCK', 7)
  monkeypatch.setattr(ranking, '_PASSAGE_BLOCK', 112)
  queries, passages, ids = corpus
  full = reference.full_ranking(queries, passages, ids)
  for k in (1, 10, 2611):
    found = ranking.top_k(queries, passages, ids, k)
    reference.assert_same(found, full, k)
  for place in (0, 3, 1000, 2610):
    gold = full.indices[:, place]
    above = ranking.hits_above(
        queries, passages, ids, gold, full.scores[:, place]
    )
    assert above.tolist() == [place] * len(queries)
