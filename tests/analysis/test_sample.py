"""What is drawn: sizes, prefixes, pairs, and that it is the same twice."""

import numpy as np
import pytest
import toy_set

from dualenc_jax.evaluation.analysis import vectors
from dualenc_jax.utils.errors import UserError


def arrays(sample):
  return [
      value.tolist()
      for value in vars(sample).values()
      if isinstance(value, np.ndarray)
  ]


def test_random_queries_and_passages_of_the_whole_corpus():
  retrieval_set = toy_set.toy_set()
  sample = vectors.draw(retrieval_set, 20)
  assert len(sample.queries) == len(set(sample.queries)) == 20
  assert len(sample.passages) == len(set(sample.passages)) == 20
  assert sample.queries.tolist() != sorted(sample.queries)
  assert arrays(vectors.draw(retrieval_set, 20)) == arrays(sample)
  assert arrays(vectors.draw(retrieval_set, 20, seed=1)) != arrays(sample)
  everything = vectors.draw(retrieval_set, 1000)
  assert sorted(everything.queries) == list(range(toy_set.QUERIES))
  assert sorted(everything.passages) == list(range(toy_set.PASSAGES))


def test_pairs_are_of_relevant_passages():
  sample = vectors.draw(toy_set.toy_set(), 1000)
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


def test_answers_only_and_too_few():
  sample = vectors.draw(toy_set.toy_set(judged=False), 30)
  assert not sample.has_pairs and not len(sample.pair_passages)
  with pytest.raises(UserError, match="'test', has 9 queries; expected at le"):
    vectors.draw(toy_set.toy_set(9, 40, judged=False), 100)
