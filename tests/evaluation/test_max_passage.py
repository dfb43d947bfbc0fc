"""maxP against all documents sorted by the definition."""

import numpy as np
import pytest

from dualenc_jax.evaluation import max_passage
from dualenc_jax.evaluation.max_passage import Documents
from dualenc_jax.retrieval.search import ranking
from dualenc_jax.utils.errors import UserError


def ranker(scores, passage_ids):
  """Ranks passages by `scores` [Q, N], trec_eval's ties."""
  scores = np.asarray(scores, np.float32)
  rows = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)

  def rank(queries, depth):
    depth = min(depth, len(passage_ids))
    found = scores[queries], rows[queries]
    return ranking.rank_candidates(*found, passage_ids, depth)

  return rank


def by_definition(scores, passage_ids, separator, k):
  """The k best (score, document id) of one query."""
  best = {}
  for passage_id, score in zip(passage_ids, np.asarray(scores, np.float32)):
    document = passage_id
    if separator in passage_id:
      document = passage_id[: passage_id.rindex(separator)]
    best[document] = max(best.get(document, -np.inf), score)
  found = [(score, document.encode()) for document, score in best.items()]
  return sorted(found, reverse=True)[:k]


def check(scores, passage_ids, k, separator='#'):
  documents = Documents.from_passage_ids(passage_ids, separator)
  hits = max_passage.top_k_documents(
      ranker(scores, passage_ids), len(scores), documents.of_passage, k
  )
  assert hits.scores.dtype == np.float32 and hits.indices.dtype == np.int64
  for q, row in enumerate(scores):
    found = [
        (score, documents.ids[i].encode())
        for score, i in zip(hits.scores[q], hits.indices[q], strict=True)
    ]
    assert found == by_definition(row, passage_ids, separator, k)


def random_ids(rng, documents, longest, separator='#'):
  ids = [
      f'd{"!é"[d % 2] * (d % 5 == 0)}{d}{separator}{passage}'
      for d in range(documents)
      for passage in range(rng.integers(1, longest + 1))
  ]
  return rng.permutation(ids).tolist()


@pytest.mark.parametrize('levels, k', [(1, 40), (3, 5), (50, 1000), (10**6, 5)])
def test_against_all_documents(levels, k):
  rng = np.random.default_rng([levels, k])
  passage_ids = random_ids(rng, 60, 8)
  scores = rng.integers(-levels, levels, (9, len(passage_ids))) / 3
  check(scores, passage_ids, k)


@pytest.mark.parametrize('separator', ['#', '_passage_', '%'])
def test_documents(separator):
  rng = np.random.default_rng(1)
  passage_ids = random_ids(rng, 40, 5, separator)
  passage_ids += ['alone', f'two{separator}parts{separator}9']
  expected = [
      p[: p.rindex(separator)] if separator in p else p for p in passage_ids
  ]
  documents = Documents.from_passage_ids(passage_ids, separator)
  assert documents.ids.tolist() == sorted(set(expected))
  assert documents.ids[documents.of_passage].tolist() == expected


def test_find():
  documents = Documents.from_passage_ids(['b#1', 'd#1', 'b#2', 'é'])
  wanted = ['d', 'a', 'b', 'é', 'zz', '\U0001f600', '', 'b#1']
  assert documents.find(wanted).tolist() == [1, -1, 0, 2, -1, -1, -1, -1]
  with pytest.raises(UserError, match="passage id '#1' names no document"):
    Documents.from_passage_ids(['a', '#1'])
