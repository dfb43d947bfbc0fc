"""Hits in trec_eval's order, and exact scores of single pairs."""

import numpy as np
import pytest
import search_cases
import search_reference as reference

from dualenc_jax.retrieval.search import ranking

VALUES = [0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, -1e-45, 1e-40, -1e-40]
VALUES += [3e38, -3e38, 1 + 2**-23, 1 - 2**-24]


@pytest.mark.parametrize('values', [VALUES, VALUES[:3], [-2.5]])
def test_the_order_of_candidates(values):
  rng = np.random.default_rng(0)
  ids = reference.shuffled_ids(rng, 1000)
  scores = rng.choice(np.array(values, np.float32), (20, 60))
  indices = np.stack([rng.permutation(1000)[:60] for _ in scores])
  for k in (1, 7, 60):
    hits = ranking.rank_candidates(scores, indices, ids, k)
    assert hits.scores.dtype == np.float32 and hits.indices.dtype == np.int64
    assert hits.scores.shape == hits.indices.shape == (20, k)
    for i, row in enumerate(indices):
      of_row = dict(zip(row.tolist(), scores[i].tolist()))
      order = sorted(of_row, key=lambda j: (of_row[j], ids[j]))[::-1][:k]
      assert hits.indices[i].tolist() == order
      assert hits.scores[i].tolist() == [of_row[j] for j in order]
  # Equal scores are equal bytes.
  assert not np.signbit(hits.scores[hits.scores == 0]).any()


def test_queries_with_fewer_candidates():
  scores = np.array([[1, -np.inf, 1, -np.inf], [3, 4, 1, 2]], np.float32)
  indices = np.array([[2, -1, 0, -1], [0, 1, 2, 3]])
  hits = ranking.rank_candidates(scores, indices, ['b', 'x', 'a', 'c'], 2)
  assert hits.indices.tolist() == [[0, 2], [1, 0]]
  assert hits.scores.tolist() == [[1, 1], [4, 3]]


def test_places_of_ids(monkeypatch):
  monkeypatch.setattr(ranking, '_CHUNK', 3)
  ids = ['b', 'é', '', 'a', '\uffff', '𝔸', '10', '9']
  ascending = sorted(ids, key=lambda i: i.encode())
  places = ranking.id_places(ids)
  assert places.dtype == np.int64
  assert places.tolist() == [ascending.index(i) for i in ids]


def test_without():
  rng = np.random.default_rng(1)
  indices = np.stack([rng.permutation(50)[:6] for _ in range(8)])
  scores = -np.sort(-rng.normal(size=(8, 6)), axis=1).astype(np.float32)
  # The first, one in the middle, the last, and none of them.
  own = np.array([*indices[[0, 1, 2], [0, 3, 5]], -1, 50, 51, -1, 60])
  left = ranking.drop_self_hits(ranking.Ranking(scores, indices), own)
  for i, row in enumerate(own.tolist()):
    pairs = list(zip(indices[i].tolist(), scores[i].tolist()))
    expected = [pair for pair in pairs if pair[0] != row][:5]
    found = zip(left.indices[i].tolist(), left.scores[i].tolist())
    assert list(found) == expected


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


def test_sums_run_from_left_to_right(passages_in_block=3):
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
  rows = rng.integers(-1, 1003, (30, 70))
  rows[0] = -1
  some = ranking.score_candidates(queries, passages, rows)
  expected = np.take_along_axis(whole, rows, axis=1)
  np.testing.assert_array_equal(some, np.where(rows < 0, -np.inf, expected))


def test_rankings_on_the_host_in_blocks(corpus, monkeypatch):
  monkeypatch.setattr(ranking, '_QUERY_BLOCK', 7)
  monkeypatch.setattr(ranking, '_PASSAGE_BLOCK', 112)
  full = reference.full_ranking(*corpus)
  for k in (1, 10, 2611):
    reference.assert_same(ranking.top_k(*corpus, k), full, k)
  for place in (0, 3, 1000, 2610):
    hit = full.indices[:, place], full.scores[:, place]
    assert (ranking.count_above(*corpus, *hit) == place).all()
