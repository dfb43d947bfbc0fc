"""Hybrid search against its formulas, written again with Python's floats."""

import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from dualenc_jax.evaluation.results.baselines import choose_weight
from dualenc_jax.retrieval.search import hybrid, ranking
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.retrieval.search.hybrid import Hybrid
from dualenc_jax.utils.errors import UserError

PASSAGES = ['red fox', 'blue fox jumps', 'red sea', 'a deep blue sea', 'fox']
IDS = ['a', 'b', 'c', 'd', 'e']
QUERY = 'blue fox'


@pytest.fixture
def vectors():
  rng = np.random.default_rng(0)
  embeddings = rng.normal(size=(len(PASSAGES), 8)).astype(np.float32)
  return embeddings, rng.normal(size=8).astype(np.float32)


def z(values):
  mean, deviation = statistics.fmean(values), statistics.pstdev(values)
  return [(value - mean) / deviation for value in values]


@pytest.mark.parametrize('weight', [0.0, 0.3, 1.0])
def test_weighted_scores_are_those_of_the_formula(vectors, weight, monkeypatch):
  # The second of two queries is of another part; passages are in three blocks.
  monkeypatch.setattr(ranking, '_QUERY_BLOCK', 1)
  monkeypatch.setattr(ranking, '_PASSAGE_BLOCK', 2)
  embeddings, query = vectors
  words = BM25(PASSAGES)
  lexical = words.scores(QUERY).tolist()
  dense = (embeddings.astype(np.float64) @ query).tolist()
  pairs = zip(z(lexical), z(dense))
  expected = [(1 - weight) * a + weight * b for a, b in pairs]
  if not weight:
    expected = [e if a else -np.inf for e, a in zip(expected, lexical)]
  system = Hybrid(words, embeddings, IDS)
  both = np.stack([-query, query])
  _, (own, found) = system.scores(['sea', QUERY], both, weight)
  np.testing.assert_array_equal(own, [a or -np.inf for a in lexical])
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_reciprocal_ranks_are_those_of_the_formula(vectors):
  embeddings, query = vectors
  words = BM25(PASSAGES)
  expected = np.zeros(len(IDS))
  for scores in (words.scores(QUERY), embeddings @ query):
    # Equal scores by id, greatest first; without a word there is no rank.
    rows = np.flatnonzero(scores)
    order = sorted(rows, key=lambda i: (scores[i], IDS[i]))[::-1]
    for rank, row in enumerate(order, start=1):
      expected[row] += 1 / (60 + rank)
  system = Hybrid(words, embeddings, IDS)
  ((_, found),) = system.scores([QUERY], query[None], 'rrf')
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_rank_beyond_the_thousandth_does_not_count():
  scores = np.arange(1500, dtype=np.float32)
  found = hybrid.fuse_ranks([scores], np.arange(1500))
  assert np.isfinite(found).sum() == 1000 and np.isinf(found[:500]).all()


@pytest.mark.parametrize('weight', [0.5, 'rrf', 0.0])
def test_unknown_words_leave_the_vectors_alone(vectors, weight):
  embeddings, query = vectors
  system = Hybrid(BM25(PASSAGES), embeddings, IDS)
  found = system.rank(['unknown words'], query[None], 5, weight)
  order = np.argsort(-embeddings @ query) if weight else [-1] * 5
  np.testing.assert_array_equal(found.indices[0], order)


@pytest.mark.parametrize('by_words, expected', [(9, 0.5), (1, 0.85)])
def test_few_queries_do_not_decide_the_weight(by_words, expected):
  # One passage is the best by the words, and one by the vectors from 0.85 on.
  both = np.float32([9, 1, 0, 0]), np.float32([7, 9, 0, 0])
  gold = [[0]] * by_words + [[1]] * (20 - by_words)
  system = SimpleNamespace(score_both=lambda texts, _: [both] * len(texts))
  ranked = SimpleNamespace(
      ranked_ids=IDS[:4], gold=gold, query_texts=[''] * 20, documents=None,
      self_hits=None,
  )
  found = choose_weight(system, np.zeros((20, 1)), ranked)
  assert found == expected


@pytest.mark.parametrize('weight', [-0.1, 1.5, float('nan'), 'half', None])
def test_weights_that_cannot_be(vectors, weight):
  with pytest.raises(UserError, match="expected 0 .* to 1 .*'rrf'"):
    next(Hybrid(BM25(PASSAGES), vectors[0], IDS).scores(
        [QUERY], vectors[1][None], weight
    ))
