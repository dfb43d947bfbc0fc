"""Evaluation over a corpus split: ids, grades, answers, and the commands."""

import dataclasses

import metrics_reference
import numpy as np
import pytest

from dualenc_jax.data import Dataset, prepare, Tokenizer, Vocabulary
from dualenc_jax.data.dataset import example
from dualenc_jax.evaluation.evaluation import rank_by_scores, score
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils.errors import UserError

# Passages 3 and 7 have one text; so have queries a and b.
TEXTS = {f'd{i}': f'passage number {3 if i == 7 else i}' for i in range(12)}
QUERIES = {'a': 'same words', 'b': 'same words', 'c': 'others', 'e': 'more'}
QRELS = {
    'a': {'d3': 2, 'd1': 1, 'd5': 0},
    'b': {'d7': 1, 'd2': -1},
    'c': {'d9': 0, 'd8': 0},
    'e': {'d0': 1, 'd4': 3, 'd11': 1, 'd10': 0},
}


class Rows(Dataset):
  """A task of rows in memory."""

  def __init__(self, **splits):
    self.rows = splits

  def identity(self, split):
    return {}

  def splits(self):
    return tuple(self.rows)

  def examples(self, split):
    return iter(self.rows[split])

  def fingerprint(self, split):
    return repr(self.rows[split])


@pytest.fixture
def cache_of(tmp_path):
  tokenizer = Tokenizer(Vocabulary('python_code_8k'), 8, 16)
  task = Rows()

  def cache_of(split, rows):
    task.rows[split] = rows
    return prepare(task, split, tokenizer, tmp_path)

  return cache_of


def judged(qrels=QRELS):
  return [
      example(QUERIES[q], TEXTS[p], query_id=q, passage_id=p, relevance=grade)
      for q, grades in qrels.items()
      for p, grade in grades.items()
  ]


def corpus_rows():
  return [example(passage=t, passage_id=p) for p, t in TEXTS.items()]


def ranking_of(order):
  order = np.array(order, np.int64)
  return Ranking(np.zeros(order.shape, np.float32), order)


def qrels_of(found):
  return {
      query_id: {found.ranked_ids[p]: grade for p, grade in judged.items()}
      for query_id, judged in zip(found.query_ids, found.judgements)
      if judged
  }


def test_metrics_over_a_corpus_are_those_of_the_definitions(cache_of):
  found = RetrievalSet.from_cache(
      cache_of('validation', judged()), cache_of('corpus', corpus_rows())
  )
  assert found.query_ids == list(QUERIES)
  assert list(found.ranked_ids) == list(TEXTS)
  assert list(found.corpus.texts) == list(TEXTS.values())
  assert list(found.query_texts) == list(QUERIES.values())
  assert qrels_of(found) == QRELS
  assert [sorted(found.ranked_ids[p] for p in g) for g in found.gold] == [
      ['d1', 'd3'], ['d7'], [], ['d0', 'd11', 'd4']
  ]
  rng = np.random.default_rng(0)
  order = np.stack([rng.permutation(12) for _ in QUERIES])
  # 'c', judged not relevant throughout, counts as 0.
  for level in (1, 2):
    each = [
        metrics_reference.of_order([f'd{p}' for p in row], QRELS[query], level)
        for query, row in zip(QUERIES, order)
    ]
    expected = {name: np.mean([v[name] for v in each]) for name in each[0]}
    at_level = dataclasses.replace(found, relevance_level=level)
    assert at_level.gold == [[3] if level == 2 else [1, 3], *at_level.gold[1:]]
    metrics = score(ranking_of(order), at_level).metrics
    assert metrics == pytest.approx(expected)
  nothing = np.full((len(QUERIES), 12), -np.inf, np.float32)
  (metrics,) = (e.metrics for e in rank_by_scores(zip(nothing), found))
  assert {*metrics.values()} == {0.0}
  with pytest.raises(UserError, match='no grade of the qrels is above 3'):
    score(ranking_of(order), dataclasses.replace(found, relevance_level=4))


def test_copies_that_are_not_judged(cache_of):
  """They are counted, and as one they have the highest of their grades."""
  caches = cache_of('test', judged()), cache_of('corpus', corpus_rows())
  found = RetrievalSet.from_cache(*caches)
  assert found.unjudged_copies() == 2
  one = found.with_equal_texts_as_one()
  assert one.unjudged_copies() == 0
  assert list(one.corpus.texts) == list(dict.fromkeys(TEXTS.values()))
  assert qrels_of(one) == {**QRELS, 'b': {'d3': 1, 'd2': -1}}
  # A query that is a copy is no hit for itself, and nor is the other.
  rows = [
      example(q, TEXTS[p], query_id=q, passage_id=p, relevance=grade)
      for q, p, grade in (
          ('a', 'd3', 2), ('a', 'd7', 0), ('d7', 'd3', 1), ('d7', 'd1', 1)
      )
  ]
  own = cache_of('own', rows)
  found = RetrievalSet.from_cache(own, caches[1], without_self_hits=True)
  assert found.unjudged_copies() == 1
  one = found.with_equal_texts_as_one()
  assert qrels_of(one) == {'a': {'d3': 2}, 'd7': {'d1': 1}}
  assert one.self_hits.tolist() == [-1, 3]


def test_without_a_corpus_equal_texts_are_one(cache_of):
  found = RetrievalSet.from_cache(cache_of('validation', judged()))
  assert found.query_ids == ['a', 'c', 'e']
  assert list(found.ranked_ids) == [
      'd3', 'd1', 'd5', 'd2', 'd9', 'd8', 'd0', 'd4', 'd11', 'd10'
  ]
  # Of passage 3, grade 2 for query a and 1 for its double, the greater counts.
  assert qrels_of(found)['a'] == {'d3': 2, 'd1': 1, 'd5': 0, 'd2': -1}
  assert found.gold == [[0, 1], [], [6, 7, 8]]
  part = found.subset(queries=5, passages=7)
  assert part.query_ids == ['a', 'e'] and len(part.corpus) == 7
  for query_id in ('a', 'e'):
    grades = {p: g for p, g in qrels_of(part)[query_id].items() if g > 0}
    every = qrels_of(found)[query_id]
    assert grades == {p: g for p, g in every.items() if g > 0}
  assert list(part.corpus.texts) == [TEXTS[p] for p in part.ranked_ids]
  irrelevant = cache_of('test', judged({'c': QRELS['c']}))
  with pytest.raises(UserError, match="'test', has no query with a relevant"):
    RetrievalSet.from_cache(irrelevant).subset(queries=5, passages=7)


def test_ids_that_name_two_or_none(cache_of):
  corpus = cache_of('corpus', corpus_rows())
  rows = judged() + [
      example('more', f't {i}', query_id='e', passage_id=f'x{i}', relevance=0)
      for i in range(4)
  ]
  with pytest.raises(UserError, match='4 are not in .* x0, x1, x2 and 1 more'):
    RetrievalSet.from_cache(cache_of('validation', rows), corpus)
  twice = [*corpus_rows(), corpus_rows()[4]]
  twice = [row | {'location': f'f:{i}'} for i, row in enumerate(twice)]
  twice = cache_of('twice', twice)
  with pytest.raises(UserError, match=r"'d4' that .* texts \(f:4 and f:\d+\)"):
    RetrievalSet.from_cache(cache_of('test', judged()), twice)


def test_queries_with_answers_and_no_passage(cache_of):
  rows = [
      example('who', query_id='1', answers=['Number 2', 'nobody']),
      example('who', query_id='2', answers=['number 11']),
      example('what', query_id='3', answers=['number']),
      example('where', query_id='4', answers=['nowhere']),
  ]
  corpus = cache_of('corpus', corpus_rows())
  found = RetrievalSet.from_cache(cache_of('test', rows), corpus)
  assert found.query_ids == ['1', '2', '3', '4'] and qrels_of(found) == {}
  order = np.arange(12)[None].repeat(4, axis=0)
  assert score(ranking_of(order), found).metrics == {
      'Top-5': 0.5, 'Top-20': 0.75, 'Top-100': 0.75
  }
  # Answers are looked for where the task says.
  found = RetrievalSet.from_cache(
      cache_of('test', rows), corpus, lambda passage, name: passage[-4:]
  )
  assert score(ranking_of(order), found).metrics['Top-100'] == 0.0
  with pytest.raises(UserError, match='needs 12 hits a query.*gives 5'):
    score(ranking_of(order[:, :5]), found)
  # With both kinds of queries each metric is a mean over its own.
  found = RetrievalSet.from_cache(
      cache_of('both', [*judged({'e': {'d1': 1}}), *rows]), corpus
  )
  order = np.arange(12)[None].repeat(5, axis=0)
  metrics = score(ranking_of(order), found).metrics
  assert metrics['MRR'] == 0.5 and metrics['Top-5'] == 0.5
  with pytest.raises(UserError, match='has only queries; expected passages'):
    RetrievalSet.from_cache(cache_of('test', rows))


def test_a_query_is_no_hit_of_its_own(cache_of):
  """ArguAna and Quora have their queries in the corpus."""
  rows = [
      example('passage number 3', TEXTS['d5'], query_id='d3', passage_id='d5'),
      example('passage number 4', TEXTS['d4'], query_id='d4', passage_id='d4'),
      example('passage number 4', TEXTS['d6'], query_id='d4', passage_id='d6'),
      example('something else', TEXTS['d1'], query_id='q', passage_id='d1'),
  ]
  caches = cache_of('test', rows), cache_of('corpus', corpus_rows())
  found = RetrievalSet.from_cache(*caches, without_self_hits=True)
  assert found.self_hits.tolist() == [3, 4, -1]
  assert qrels_of(found) == {'d3': {'d5': 1}, 'd4': {'d6': 1}, 'q': {'d1': 1}}
  assert RetrievalSet.from_cache(*caches).self_hits is None
  part = found.subset(2, 5)
  for name, row in zip(part.query_ids, part.self_hits):
    kept = part.ranked_ids[row] if row >= 0 else None
    # A query and its own passage have one id.
    assert kept == (name if name in list(part.ranked_ids) else None)
