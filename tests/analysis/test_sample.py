"""What is drawn: sizes, prefixes, pairs, and that it is the same twice."""

import numpy as np
import pytest
import toy_set

from dualenc_jax.evaluation.analysis import sample as sample_lib
from dualenc_jax.utils.errors import UserError


def arrays(sample):
  return [
      value.tolist()
      for value in vars(sample).values()
      if isinstance(value, np.ndarray)
  ]


def test_random_queries_and_passages_of_the_whole_corpus():
  retrieval_set = toy_set.toy_set()
  sample = sample_lib.draw(retrieval_set, 20)
  assert len(sample.queries) == len(set(sample.queries)) == 20
  assert len(sample.passages) == len(set(sample.passages)) == 20
  assert sample.queries.tolist() != sorted(sample.queries)
  np.testing.assert_array_equal(sample.searched, np.arange(toy_set.PASSAGES))
  assert arrays(sample_lib.draw(retrieval_set, 20)) == arrays(sample)
  assert arrays(sample_lib.draw(retrieval_set, 20, seed=1)) != arrays(sample)
  everything = sample_lib.draw(retrieval_set, 1000)
  assert sorted(everything.queries) == list(range(toy_set.QUERIES))
  assert sorted(everything.passages) == list(range(toy_set.PASSAGES))


def test_pairs_are_of_relevant_passages():
  sample = sample_lib.draw(toy_set.toy_set(), 1000)
  assert len(sample.pair_queries) == 29
  for position, passage in zip(sample.pair_queries, sample.pair_passages):
    query = sample.queries[position]
    assert passage in (query, 30 + query % 10)
    assert sample.gold[position] == sorted({query, 30 + query % 10})
  # Not always the same of the two.
  assert 5 < np.sum(sample.pair_passages < 30) < 25
  assert sample.has_pairs
  assert sample.query_id(0) == f'q{sample.queries[0]}'
  assert sample.passage_id(2) == f'p{sample.passages[2]}'


def test_a_part_of_the_corpus_has_the_relevant_passages():
  sample = sample_lib.draw(toy_set.toy_set(), 12, max_passages=11)
  assert 11 <= len(sample.searched) < toy_set.PASSAGES
  assert sample.searched.tolist() == sorted({*sample.searched.tolist()})
  assert {*sample.pair_passages, *sample.passages} <= {*sample.searched}


def test_random_passages_of_a_part_are_as_seldom_relevant_as_any():
  # 30 of 1,000 passages are relevant, each for one query or more.
  retrieval_set = toy_set.toy_set(passages=1000)
  shares = []
  for seed in range(40):
    sample = sample_lib.draw(retrieval_set, 30, seed=seed, max_passages=30)
    assert len(sample.passages) == 30 and len(sample.searched) > 40
    relevant = {p for gold in sample.gold for p in gold}
    shares.append(np.mean([p in relevant for p in sample.passages]))
  # Of 1,200 draws; the standard deviation of the mean is 0.006.
  assert np.mean(shares) == pytest.approx(40 / 1000, abs=0.02)


def test_answers_only_and_too_few():
  sample = sample_lib.draw(toy_set.toy_set(judged=False), 30)
  assert not sample.has_pairs and not len(sample.pair_passages)
  with pytest.raises(UserError, match="'test', has 9 queries; expected at le"):
    sample_lib.draw(toy_set.toy_set(9, 40, judged=False), 100)
