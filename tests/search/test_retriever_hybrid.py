"""Retriever with BM25 and embeddings fused."""

import numpy as np
import pytest
import tiny_towers

from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.retrieval.search.hybrid import Hybrid
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

PASSAGES = ['red foxes', 'a blue fox', 'the red sea', 'deep blue sea', 'none']
IDS = ['a', 'b', 'c', 'd', 'e']


@pytest.fixture(scope='module')
def towers():
  return tiny_towers.loaded()


@pytest.fixture
def retriever(towers):
  made = Retriever(towers)
  made.index(PASSAGES, IDS)
  return made


@pytest.mark.parametrize('hybrid', ['rrf', 0, 0.4, 1])
def test_hits_are_those_of_the_two_fused(retriever, hybrid):
  queries = ['blue fox', 'seas of red', 'unknown']
  system = Hybrid(BM25(PASSAGES), retriever.encode_passages(PASSAGES), IDS)
  expected = system.rank(queries, retriever.encode_queries(queries), 3, hybrid)
  found = retriever.search(queries, 3, hybrid=hybrid)
  assert found.ids.tolist() == np.array([*IDS, ''])[expected.indices].tolist()
  np.testing.assert_array_equal(found.scores, expected.scores)
  hits = retriever.find(queries, 3, hybrid=hybrid)
  ids = [[h.passage.id for h in own] for own in hits]
  assert ids == [[*filter(None, own)] for own in found.ids.tolist()]


def test_words_of_another_language(retriever):
  retriever.index_words(language=None)
  # Without stems 'foxes' is another word than 'fox'.
  assert retriever.search(['foxes'], 1, hybrid=0).ids.tolist() == [['a']]
  retriever.index_words()
  assert retriever.search(['foxes'], 2, hybrid=0).ids.tolist() == [['b', 'a']]
  # New passages have new words.
  retriever.index(['another text', 'sea'], ['x', 'y'])
  assert retriever.search(['sea'], 1, hybrid=0).ids.tolist() == [['y']]


def test_what_it_needs(retriever):
  vectors = retriever.encode_queries(['fox'])
  with pytest.raises(UserError, match='needs texts of queries'):
    retriever.search(vectors, 1, hybrid='rrf')
  retriever.index(retriever.encode_passages(PASSAGES), IDS)
  with pytest.raises(UserError, match='without their texts'):
    retriever.search(['fox'], 1, hybrid='rrf')
