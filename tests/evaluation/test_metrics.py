"""Metrics of a ranking, by their definitions."""

import metrics_reference
import numpy as np
import pytest

from dualenc_jax.evaluation import metrics
from dualenc_jax.retrieval.search import ranking
from dualenc_jax.utils.errors import UserError

NAMES = [
    'P@1', 'MRR', 'MRR@10', 'nDCG@10', 'MAP',
    'Recall@1', 'Recall@10', 'Recall@100', 'Recall@1000',
]


def rank_all(scores, ids):
  scores = np.array(scores, np.float32)
  rows = np.broadcast_to(np.arange(len(ids)), scores.shape)
  return ranking.rank_candidates(scores, rows, ids, len(ids))


def random_case(seed):
  """Ids, scores [Q, N] and qrels by id, of every kind that may occur."""
  rng = np.random.default_rng(seed)
  count = int(rng.choice([1, 7, 150, 1300]))
  ids = [f'p{i}é' if i % 7 else f'P{i}' for i in rng.permutation(count)]
  levels = int(rng.choice([1, 5, 10**6]))  # One: all scores tie.
  scores = rng.integers(0, levels, (12, count)).astype(np.float32) / 7
  pool = ids + [f'elsewhere {i}' for i in range(5)]
  least = int(rng.choice([-2, 0, 1]))
  qrels = []
  for _ in scores:
    size = min(int(rng.choice([0, 1, 2, 150])), len(pool))
    judged = rng.choice(pool, size, replace=False).tolist()
    qrels.append({p: int(rng.integers(least, 4)) for p in judged})
  return ids, scores, qrels


def as_rows(qrels, ids):
  row_of = {passage_id: row for row, passage_id in enumerate(ids)}
  return [
      {row_of.get(p, -1 - i): g for i, (p, g) in enumerate(judged.items())}
      for judged in qrels
  ]


@pytest.mark.parametrize('seed', range(12))
def test_against_the_definitions(seed):
  ids, scores, qrels = random_case(seed)
  counted = [q for q, judged in enumerate(qrels) if judged]
  hits = rank_all(scores, ids)
  if seed % 2:  # What scores 0 is not retrieved.
    hits = hits._replace(indices=np.where(hits.scores > 0, hits.indices, -1))
  found = metrics.score(hits, as_rows(qrels, ids), len(ids))
  assert list(found.means()) == NAMES
  assert found.queries.tolist() == counted
  for i, q in enumerate(counted):
    values = {name: column[i] for name, column in found.values.items()}
    run = dict(zip(ids, scores[q].tolist()))
    run = {p: score for p, score in run.items() if score or not seed % 2}
    order = metrics_reference.trec_eval_order(run)
    expected = metrics_reference.of_order(order, qrels[q])
    assert values == pytest.approx(expected, rel=1e-12)
  for name, mean in found.means().items():
    assert mean == pytest.approx(np.mean(found.values[name]), rel=1e-12)


@pytest.mark.parametrize('depth', [100, 999, 1000, 1299])
def test_a_cut_ranking_with_ranks(depth):
  ids = [f'{i:04}' for i in range(1300)]
  rng = np.random.default_rng(0)
  scores = rng.permuted(np.tile(np.arange(1300), (30, 1)), axis=1)
  judgements = [
      {int(row): 1 for row in rng.choice(1300, 1 + q % 3)} for q in range(30)
  ]
  whole = rank_all(scores, ids)
  cut = ranking.Ranking(whole.scores[:, :depth], whole.indices[:, :depth])
  ranks = np.array([
      1 + np.isin(whole.indices[q], list(judgements[q])).argmax()
      for q in range(30)
  ])
  assert (ranks > depth).any() or depth == 1299
  expected = metrics.score(whole, judgements, 1300).values
  found = metrics.score(cut, judgements, 1300, ranks).values
  assert ('Recall@1000' in found) == (depth >= 1000)
  for name, values in found.items():
    if name != 'MAP':
      np.testing.assert_array_equal(values, expected[name], name)
  for q in range(30):
    order = [str(row) for row in cut.indices[q]]
    grades = {str(row): 1 for row in judgements[q]}
    at_depth = metrics_reference.of_order(order, grades)['MAP']
    assert found['MAP'][q] == pytest.approx(at_depth, rel=1e-12)
  del found['MRR']
  without = metrics.score(cut, judgements, 1300).values
  assert list(without) == list(found)


@pytest.mark.parametrize('depth, judgements, message', [
    (99, [{5: 1}], 'Recall@100 needs 100 hits'),
    (200, [{5: 0}], 'no grade of the qrels is above 0'),
])
def test_bad_input(depth, judgements, message):
  hits = rank_all(np.zeros((1, depth)), [f'{i:03}' for i in range(depth)])
  with pytest.raises(UserError, match=message):
    metrics.score(hits, judgements, 200)
