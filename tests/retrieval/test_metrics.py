"""Metrics against trec_eval's code and printed output, and by hand."""

import logging
import math

import numpy as np
import pytest
import pytrec_eval

from dualenc_jax.errors import UserError
from dualenc_jax.retrieval import metrics
from dualenc_jax.retrieval import ranking
from dualenc_jax.retrieval import trec

NAMES = [
    'P@1',
    'MRR',
    'MRR@10',
    'nDCG@10',
    'Recall@1',
    'Recall@10',
    'Recall@100',
]


def from_order(order):
  """A ranking whose hits are rows `order`; its scores say nothing."""
  order = np.array(order, np.int64)
  return ranking.Ranking(np.zeros(order.shape, np.float32), order)


def test_four_passages_with_a_tie_by_hand():
  # Scores a .5, b .5, c .9, d .1: the tie goes to b, so c b a d.
  query = np.ones((1, 1), np.float32)
  passages = np.array([[0.5], [0.5], [0.9], [0.1]], np.float32)
  ids = ['a', 'b', 'c', 'd']
  hits = ranking.top_k(query, passages, ids, 4)
  found = metrics.evaluate(hits, ['q'], ids, {'q': {'a': 1, 'd': 2, 'b': 0}})
  gain = 1 / math.log2(4) + 2 / math.log2(5)
  ideal = 2 / math.log2(2) + 1 / math.log2(3)
  assert list(found) == NAMES
  assert found == pytest.approx({
      'P@1': 0.0,
      'MRR': 1 / 3,
      'MRR@10': 1 / 3,
      'nDCG@10': gain / ideal,
      'Recall@1': 0.0,
      'Recall@10': 1.0,
      'Recall@100': 1.0,
  })


@pytest.mark.parametrize('full', [True, False])
def test_against_pytrec_eval_on_distinct_scores(full):
  rng = np.random.default_rng(0)
  passage_ids = [f'p{i}' for i in rng.permutation(500)]
  query_ids = [f'q{i}' for i in range(40)]
  scores = np.stack([rng.permutation(500) for _ in query_ids]) / 7.0
  qrels = {
      q: {
          passage_ids[i]: int(rng.integers(0, 4))
          for i in rng.choice(500, rng.integers(1, 120), replace=False)
      }
      for q in query_ids
  }
  qrels = {q: grades for q, grades in qrels.items() if any(grades.values())}
  reference = pytrec_eval.RelevanceEvaluator(
      qrels, {'recip_rank', 'P.1', 'ndcg_cut.10', 'recall.1,10,100'}
  ).evaluate({
      query_id: dict(zip(passage_ids, row.tolist()))
      for query_id, row in zip(query_ids, scores)
  })

  def mean(name, keep=lambda x: True):
    return np.mean([v[name] * keep(v[name]) for v in reference.values()])

  order = np.argsort(-scores, axis=1)
  ranks = np.array([
      round(1 / reference[q]['recip_rank']) if q in reference else 0
      for q in query_ids
  ])
  found = metrics.evaluate(
      from_order(order if full else order[:, :120]),
      query_ids,
      passage_ids,
      qrels,
      None if full else ranks,
  )
  assert found == pytest.approx(
      {
          'P@1': mean('P_1'),
          'MRR': mean('recip_rank'),
          'MRR@10': mean('recip_rank', lambda x: x >= 0.1),
          'nDCG@10': mean('ndcg_cut_10'),
          'Recall@1': mean('recall_1'),
          'Recall@10': mean('recall_10'),
          'Recall@100': mean('recall_100'),
      },
      rel=1e-9,
  )
  assert found['MRR'] > found['MRR@10'] > found['P@1'] > 0


def test_trec_evals_own_fixture(shared):
  folder = shared / 'data' / 'trec_eval_test'
  qrels = {}
  for line in (folder / 'qrels.test').read_text().splitlines():
    query_id, _, passage_id, grade = line.split()
    qrels.setdefault(query_id, {})[passage_id] = int(grade)
  run = trec.read_run(folder / 'results.test')
  passage_ids = sorted(set().union(*run.values(), *qrels.values()))
  row_of = {p: i for i, p in enumerate(passage_ids)}
  order, ranks = [], []
  for query_id, hits in run.items():
    ids = sorted(hits, reverse=True)
    ids.sort(key=lambda p: -hits[p])
    order.append([row_of[p] for p in ids])
    grades = [qrels[query_id].get(p, 0) for p in ids]
    ranks.append(next(r for r, grade in enumerate(grades, 1) if grade > 0))
  query_ids = list(run)
  found = metrics.evaluate(
      from_order(order), query_ids, passage_ids, qrels, np.array(ranks)
  )

  means, relstrings = {}, []
  for line in (folder / 'out.test.aq').read_text().splitlines():
    name, topic, value = line.split()
    if topic == 'all':
      means[name] = value
    elif name == 'relstring':
      relstrings.append(value.strip("'"))
  assert f'{found["MRR"]:.4f}' == means['recip_rank'] == '0.4064'
  assert f'{found["nDCG@10"]:.4f}' == means['ndcg_cut_10']
  assert f'{found["Recall@10"]:.4f}' == means['recall_10']
  assert f'{found["Recall@100"]:.4f}' == means['recall_100']
  # The grades of each topic's first ten hits, as trec_eval orders them.
  assert len(relstrings) == 3
  first = [
      next((i for i, grade in enumerate(grades) if grade > '0'), 99)
      for grades in relstrings
  ]
  assert found['P@1'] == pytest.approx(sum(i == 0 for i in first) / 3)
  assert found['MRR@10'] == pytest.approx(
      sum(1 / (i + 1) for i in first if i < 10) / 3
  )


def test_constant_scorer_gets_the_rank_of_the_id_rule():
  ids = [f'p{i:02}' for i in range(50)]
  same = np.ones((50, 8), np.float32)
  gold = [7, 49, 0]
  qrels = {f'q{g}': {ids[g]: 1} for g in gold}
  query_ids = list(qrels)
  hits = ranking.top_k(same[:3], same, ids, 50)
  ranks = ranking.gold_ranks(same[:3], same, ids, [[g] for g in gold])
  assert ranks.tolist() == [43, 1, 50]
  for given in (None, ranks):
    found = metrics.evaluate(hits, query_ids, ids, qrels, given)
    assert found['MRR'] == pytest.approx((1 / 43 + 1 + 1 / 50) / 3)
    assert found['P@1'] == pytest.approx(1 / 3)
    assert found['MRR@10'] == pytest.approx(1 / 3)


def test_the_order_of_the_hits_counts_not_their_scores():
  # Scores a float32 cannot tell apart, in an order against the id rule.
  order = np.arange(200)[None]
  ids = [f'{i:03}' for i in range(200)]
  hits = ranking.Ranking(np.full((1, 200), 1e-30, np.float32), order)
  found = metrics.evaluate(hits, ['q'], ids, {'q': {'001': 1, '099': 1}})
  assert found['MRR'] == found['MRR@10'] == 0.5
  assert found['Recall@100'] == 1.0


def test_relevant_rows():
  qrels = {'q1': {'b': 1, 'a': 0, 'elsewhere': 2}, 'q3': {'a': 3, 'c': 1}}
  rows = metrics.relevant_rows(qrels, ['q3', 'q2', 'q1'], ['a', 'b', 'c'])
  assert rows == [[0, 2], [], [1]]


def test_means_are_over_the_queries_with_a_relevant_passage(caplog):
  ids = ['a', 'b', 'c']
  qrels = {
      'hit': {'a': 1},
      'nothing relevant': {'a': 0, 'b': -1},
      'not ranked': {'b': 1},
      'not in the corpus': {'z': 1},
  }
  query_ids = ['hit', 'nothing relevant', 'not in the corpus', 'not judged']
  with caplog.at_level(logging.WARNING):
    found = metrics.evaluate(from_order([[0, 1, 2]] * 4), query_ids, ids, qrels)
  assert found == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
  assert '1 of the 4 queries in the qrels have no relevant' in caplog.text
  assert '1 of the 3 judged queries were not ranked' in caplog.text


IDS_200 = [str(i) for i in range(200)]


@pytest.mark.parametrize(
    'depth, query_ids, qrels, ranks, message',
    [
        (120, ['q'], {'q': {'5': 1}}, None, 'needs the whole corpus of 200'),
        (99, ['q'], {'q': {'5': 1}}, [6], 'Recall@100 needs 100 hits'),
        (120, ['q'], {'q': {'5': 1}}, [7], "'q' has rank 7, .* at 6"),
        (120, ['q'], {'q': {'5': 1}}, [0], 'rank 0, .* at 6'),
        (120, ['q'], {'q': {'150': 1}}, [120], 'not among the first 120'),
        (120, ['q'], {'q': {'150': 1}}, [0], 'not among the first 120'),
        (120, ['q', 'r'], {'q': {'5': 1}}, [6, 1], "'r' has rank 1"),
        (120, ['q'], {'q': {'5': 1}}, [6, 6], r'shape \(2,\): expected one'),
        (200, ['q', 'q'], {'q': {'5': 1}}, None, "query id 'q' is repeated"),
        (200, ['q'], {'r': {'5': 1}}, None, 'none of the 1 queries'),
        (200, ['q'], {'q': {'5': 0}}, None, 'none of the 1 queries'),
    ],
)
def test_bad_input(depth, query_ids, qrels, ranks, message):
  hits = from_order([list(range(depth))] * len(query_ids))
  ranks = None if ranks is None else np.array(ranks)
  with pytest.raises(UserError, match=message):
    metrics.evaluate(hits, query_ids, IDS_200, qrels, ranks)


def test_rows_without_a_query_id():
  with pytest.raises(UserError, match='2 rows for 1 query ids'):
    metrics.evaluate(
        from_order([list(range(200))] * 2), ['q'], IDS_200, {'q': {'1': 1}}
    )
