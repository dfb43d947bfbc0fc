"""The graph search is faiss's own, with ties by ids, the same every time."""

import faiss
import numpy as np
import pytest

from dualenc_jax.retrieval.search import ranking
from dualenc_jax.retrieval.search.exact_search import ExactSearch
from dualenc_jax.retrieval.search.hnsw import GraphSearch

COUNT, DIM, LINKS = 3000, 24, 6


@pytest.fixture(scope='module')
def vectors():
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(COUNT + 40, DIM)).astype(np.float32)
  # Some passages are equal.
  rows[:50] = rows[50:100]
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[:COUNT], rows[COUNT:]


def test_the_hits_and_bytes_of_faiss(vectors):
  passages, queries = vectors
  ids = [f'p{i:04}' for i in range(COUNT)]
  found = GraphSearch(passages, ids, LINKS)
  theirs = faiss.IndexHNSWFlat(DIM, LINKS, faiss.METRIC_INNER_PRODUCT)
  theirs.hnsw.efConstruction = 200
  threads = faiss.omp_get_max_threads()
  faiss.omp_set_num_threads(1)
  theirs.add(passages)
  faiss.omp_set_num_threads(threads)
  assert found.bytes_per_passage == len(faiss.serialize_index(theirs)) / COUNT
  theirs.hnsw.efSearch = 150
  hits = found.top_k(queries, 150)
  scores, rows = theirs.search(queries, 150)
  np.testing.assert_array_equal(np.sort(hits.indices), np.sort(rows))
  np.testing.assert_array_equal(hits.scores, scores)
  # Equal scores are by id, greatest first.
  assert np.any(hits.scores[:, 1:] == hits.scores[:, :-1])
  for own, row in zip(hits.scores.tolist(), hits.indices.tolist()):
    assert row == sorted(row, key=lambda i: (own[row.index(i)], i))[::-1]
  again = GraphSearch(passages, ids, LINKS).top_k(queries, 150)
  np.testing.assert_array_equal(again.indices, hits.indices)
  # It keeps 128 candidates at least, and misses some of what there is.
  theirs.hnsw.efSearch = 128
  few = found.top_k(queries, 10).indices
  np.testing.assert_array_equal(
      np.sort(few), np.sort(theirs.search(queries, 10)[1])
  )
  exact = ExactSearch(passages, ids).top_k(queries, 150).indices
  share = np.mean([np.isin(*pair).mean() for pair in zip(exact, hits.indices)])
  assert 0.7 < share < 1
  np.testing.assert_array_equal(few[:, :1], exact[:, :1])


def test_hits_that_are_missing_are_none(vectors):
  """No id of a query is dropped in place of a hit that is missing."""
  passages, queries = vectors
  ids = [f'p{i}' for i in range(5)]
  search = GraphSearch(passages[:5], ids, 2)
  search._index.reset()
  search._index.add(passages[:3])
  hits = search.top_k(queries[:2], 9)
  assert hits.indices.shape == (2, 3)
  padded = ranking.Ranking(
      np.pad(hits.scores, ((0, 0), (0, 3)), constant_values=-np.inf),
      np.pad(hits.indices, ((0, 0), (0, 3)), constant_values=-1),
  )
  own = np.array([-1, hits.indices[1, 0]])
  left = ranking.drop_self_hits(padded, own).indices
  assert left[0].tolist() == [*hits.indices[0].tolist(), -1, -1]
  assert left[1].tolist() == [*hits.indices[1, 1:].tolist(), -1, -1, -1]
