"""Metrics of run files against trec_eval's printed output and published ones.

`out.test.aq` is what trec_eval prints of its fixture with all measures, by
topic and as means.
"""

import logging

import metrics_reference
import pytest

from dualenc_jax.evaluation import metrics, trec
from dualenc_jax.utils.errors import UserError

# success_1 is P_1, which is not among trec_eval's cuts.
PRINTED = {
    'P@1': 'success_1',
    'MRR': 'recip_rank',
    'nDCG@10': 'ndcg_cut_10',
    'MAP': 'map',
    'Recall@10': 'recall_10',
    'Recall@100': 'recall_100',
    'Recall@1000': 'recall_1000',
}


@pytest.fixture
def fixture(shared):
  """The run, the qrels and the printed values by topic of trec_eval's test."""
  folder = shared / 'data' / 'trec_eval_test'
  printed = {}
  for line in (folder / 'out.test.aq').read_text().splitlines():
    name, topic, value = line.split()
    printed.setdefault(topic, {})[name] = value
  run = trec.read_run(folder / 'results.test')
  return run, trec.read_qrels(folder / 'qrels.test'), printed


def test_trec_evals_own_fixture(fixture):
  """To the last digit, and what follows from the grades of the first hits."""
  run, qrels, printed = fixture
  assert len(run) == int(printed['all']['num_q']) == 3
  found = metrics.evaluate_run(run, qrels)
  topics = found.queries
  assert topics == list(qrels)
  for name, theirs in PRINTED.items():
    for topic, value in zip(topics, found.values[name], strict=True):
      assert f'{value:.4f}' == printed[topic][theirs], (name, topic)
    assert f'{found.means()[name]:.4f}' == printed['all'][theirs], name
  for i, topic in enumerate(topics):
    grades = printed[topic]['relstring'].strip("'")
    first = next((p for p, grade in enumerate(grades, 1) if grade > '0'), None)
    assert found.values['MRR@10'][i] == (1 / first if first else 0)
    recall = (grades[0] > '0') / int(printed[topic]['num_rel'])
    assert found.values['Recall@1'][i] == pytest.approx(recall)


@pytest.mark.parametrize('system, expected', [
    ('BM25', '0.5058'), ('SPLADE_P_P_ENSEMBLE_DISTIL', '0.7308')
])
def test_published_figures_of_dl19(shared, system, expected):
  folder = shared / 'data' / 'msmarco_v1_dl1920'
  run = trec.read_run(folder / 'runs' / f'dl19.{system}.txt')
  qrels = trec.read_qrels(folder / 'qrels_full' / 'qrels.dl19-passage.txt')
  found = metrics.evaluate_run(run, qrels)
  assert len(found.queries) == 43
  assert f'{found.means()["nDCG@10"]:.4f}' == expected
  # One that is judged, ranked, and has nothing of grade 1.
  run['zero'], qrels['zero'] = {'a': 2.0, 'b': 1.0}, {'a': 0, 'c': 0}
  # TREC's own P, MAP and MRR ask for grade 2; nDCG's gains stay.
  for level in (1, 2, 3):
    found = metrics.evaluate_run(run, qrels, relevance_level=level)
    assert found.queries == list(qrels)
    for i, query in enumerate(found.queries):
      order = metrics_reference.trec_eval_order(run[query])
      values = {name: column[i] for name, column in found.values.items()}
      reference = metrics_reference.of_order(order, qrels[query], level)
      assert values == pytest.approx(reference, rel=1e-12)


def test_missing_queries_count_as_0_and_others_not(caplog):
  run = {'hit': {'a': 1.0}, 'no qrels': {'b': 1.0}, 'nothing': {'a': 1.0}}
  qrels = {'missing': {'a': 1}, 'nothing': {'a': 0, 'b': -1}, 'hit': {'a': 2}}
  with caplog.at_level(logging.WARNING):
    found = metrics.evaluate_run(run, qrels)
  assert found.queries == ['missing', 'nothing', 'hit']
  for name, values in found.values.items():
    assert values.tolist() == [0.0, 0.0, 1.0], name
  assert 'a relevant passage, which count as 0, as in trec_eval -c: 1.' in (
      caplog.text
  )
  assert '1 of the 3 judged queries were not ranked' in caplog.text


@pytest.mark.parametrize('qrels, problem', [
    *((own, 'none of the ranked queries has a relevant')
      for own in ({}, {'r': {'a': 1}})),
    ({'q': {'a': 0}}, 'no grade of the qrels is above 0'),
    ({'q': {'a': 2 * 10**9}}, 'grade 2000000000; expected -1,000,000 to'),
])
def test_qrels_that_measure_nothing(qrels, problem):
  with pytest.raises(UserError, match=problem):
    metrics.evaluate_run({'q': {'a': 1.0}}, qrels)
