"""Metrics of a ranking, by their definitions."""

import metrics_reference
import numpy as np
import pytest
import pytrec_eval

from dualenc_jax.evaluation import metrics
from dualenc_jax.retrieval.search import ranking
from dualenc_jax.utils.errors import UserError

MORE = (
    'MRR@3', 'MRR@100', 'Recall@5', 'Recall@20', 'Recall@50', 'nDCG@3',
    'nDCG@20', 'P@5', 'MAP@7', 'MAP@100', 'Success@1', 'Success@5',
)
NAMES = [*metrics_reference.STANDARD, *MORE]


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
  rows = as_rows(qrels, ids)
  found = metrics.score(hits, rows, len(ids), more=MORE)
  assert list(found.means()) == NAMES
  assert found.queries.tolist() == counted
  for i, q in enumerate(counted):
    values = {name: column[i] for name, column in found.values.items()}
    run = dict(zip(ids, scores[q].tolist()))
    run = {p: score for p, score in run.items() if score or not seed % 2}
    order = metrics_reference.trec_eval_order(run)
    expected = metrics_reference.of_order(order, qrels[q], names=NAMES)
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


def test_cuts_by_hand_and_as_pytrec_eval():
  """Relevant are the hits at 2, 3 and 6, and one passage beyond the hits."""
  run = {'q': {f'd{place}': -float(place) for place in range(1, 9)}}
  qrels = {'q': {'d2': 1, 'd3': 2, 'd6': 1, 'gone': 1, 'd1': 0}}
  names = 'MRR@1', 'MRR@2', 'Recall@3', 'P@5', 'MAP@3', 'Success@1', 'Success@2'
  found = metrics.evaluate_run(run, qrels, more=names).means()
  assert [found[name] for name in names] == [
      0, 1 / 2, 2 / 4, 2 / 5, (1 / 2 + 2 / 3) / 4, 0, 1,
  ]
  gain, log = found['P@1'], np.log2
  assert gain == 0
  cut = metrics.evaluate_run(run, qrels, more=('nDCG@3',)).means()['nDCG@3']
  ideal = 2 + 1 / log(3) + 1 / log(4)
  assert cut == pytest.approx((1 / log(3) + 2 / log(4)) / ideal)
  # A reciprocal rank that is cut is that of the run of so many hits.
  for k in range(1, 9):
    best = {'q': dict(list(run['q'].items())[:k])}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {'recip_rank'})
    theirs = evaluator.evaluate(best)['q']['recip_rank']
    ours = metrics.evaluate_run(run, qrels, more=(f'MRR@{k}',)).means()
    assert ours[f'MRR@{k}'] == theirs
    theirs = {
        name: pytrec_eval.RelevanceEvaluator(qrels, {f'{name}.{k}'}).evaluate(
            run
        )['q'][f'{name}_{k}']
        for name in ('P', 'recall', 'ndcg_cut', 'map_cut', 'success')
    }
    more = [f'{m}@{k}' for m in ('P', 'Recall', 'nDCG', 'MAP', 'Success')]
    ours = metrics.evaluate_run(run, qrels, more=more).means()
    assert [ours[name] for name in more] == [*theirs.values()]


@pytest.mark.parametrize('name, message', [
    ('ndcg@20', "no metric 'ndcg@20'. Did you mean 'nDCG@20'"),
    ('R@5', "no metric 'R@5'. Did you mean 'Recall@5'?"),
    ('Recall', "no metric 'Recall'. Did you mean 'Recall@10'"),
    ('top50', "no metric 'top50'. Did you mean 'Top-50'"),
    ('P@0', "no metric 'P@0'"),
    ('Top@5', "no metric 'Top@5'. Did you mean 'Top-5'"),
    ('MRR@', "no metric 'MRR@'. Did you mean 'MRR'"),
    ('Recall@2000', r'Recall@2000 needs 2,000 hits a query, but --k gives 1,000'
                    r'. Give --k=2000.'),
])
def test_names_that_cannot_be_measured(name, message):
  with pytest.raises(UserError, match=message):
    metrics.parse_names(['MRR@100', name], 1000)


@pytest.mark.parametrize('depth, judgements, message', [
    (99, [{5: 1}], 'Recall@100 needs 100 hits'),
    (200, [{5: 0}], 'no grade of the qrels is above 0'),
])
def test_bad_input(depth, judgements, message):
  hits = rank_all(np.zeros((1, depth)), [f'{i:03}' for i in range(depth)])
  with pytest.raises(UserError, match=message):
    metrics.score(hits, judgements, 200)
  with pytest.raises(UserError, match='P@150 needs 150 hits.*gives 120'):
    metrics.score(
        rank_all(np.zeros((1, 120)), [f'{i:03}' for i in range(120)]),
        [{5: 1}], 200, more=['P@150'],
    )
