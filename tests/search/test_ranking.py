"""Hits in trec_eval's order against Python's own sort."""

import numpy as np
import pytest
import search_reference as reference

from dualenc_jax.search import ranking

VALUES = [0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, -1e-45, 1e-40, -1e-40]
VALUES += [3e38, -3e38, 1 + 2**-23, 1 - 2**-24]


def expected_order(scores, indices, ids):
  return sorted(
      indices.tolist(),
      key=lambda i: (scores[indices.tolist().index(i)], ids[i]),
      reverse=True,
  )


@pytest.mark.parametrize('values', [VALUES, VALUES[:3], [-2.5]])
def test_the_order_of_candidates(values):
  rng = np.random.default_rng(0)
  ids = reference.shuffled_ids(rng, 1000)
  scores = rng.choice(np.array(values, np.float32), (20, 60))
  indices = np.stack([rng.permutation(1000)[:60] for _ in scores])
  for k in (1, 7, 60):
    hits = ranking.best_hits(scores, indices, ids, k)
    assert hits.scores.dtype == np.float32 and hits.indices.dtype == np.int64
    assert hits.scores.shape == hits.indices.shape == (20, k)
    for i, row in enumerate(indices):
      order = expected_order(scores[i].tolist(), row, ids)[:k]
      assert hits.indices[i].tolist() == order
      of_row = dict(zip(row.tolist(), scores[i].tolist()))
      assert hits.scores[i].tolist() == [of_row[j] for j in order]
  # Equal scores are equal bytes.
  assert not np.signbit(hits.scores[hits.scores == 0]).any()


def test_queries_with_fewer_candidates():
  scores = np.array([[1, -np.inf, 1, -np.inf], [3, 4, 1, 2]], np.float32)
  indices = np.array([[2, -1, 0, -1], [0, 1, 2, 3]])
  hits = ranking.best_hits(scores, indices, ['b', 'x', 'a', 'c'], 2)
  assert hits.indices.tolist() == [[0, 2], [1, 0]]
  assert hits.scores.tolist() == [[1, 1], [4, 3]]


def test_ids_order_by_their_utf8_bytes():
  ids = ['a', 'Z', 'é', '𝔸', '\uffff', 'a ', '10', '9', '']
  ones = np.ones((1, 9), np.float32)
  hits = ranking.best_hits(ones, np.arange(9)[None], ids, 9)
  by_bytes = sorted(ids, key=lambda i: i.encode(), reverse=True)
  assert [ids[i] for i in hits.indices[0]] == by_bytes


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
  left = ranking.without(ranking.Ranking(scores, indices), own)
  for i, row in enumerate(own.tolist()):
    pairs = list(zip(indices[i].tolist(), scores[i].tolist()))
    expected = [pair for pair in pairs if pair[0] != row][:5]
    found = zip(left.indices[i].tolist(), left.scores[i].tolist())
    assert list(found) == expected
