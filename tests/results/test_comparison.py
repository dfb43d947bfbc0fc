"""Differences by hand, and results that must not be compared."""

import numpy as np
import pytest
import result_folders

from dualenc_jax.data.readers import beir
from dualenc_jax.evaluation.results import result_files
from dualenc_jax.evaluation.results.comparison import compare
from dualenc_jax.utils.errors import UserError


def compared(root, names='ab', **options):
  baseline, *others = (result_files.read_model(root / name) for name in names)
  return compare(baseline, others, **options)


def of_two(root, one, other, metric='MRR', **fields):
  """Writes a and b; `fields` are of b."""
  result_folders.of_column(root / 'a', metric, one)
  result_folders.of_column(root / 'b', metric, other, **fields)


def test_a_comparison_by_hand(tmp_path):
  of_two(tmp_path, [0.5, 0.5, 1.0, 0.0, 0.5], [1.0, 1.0, 0.5, 0.0, 1.0])
  (d,) = compared(tmp_path).differences
  assert (d.set_name, d.metric, d.model) == ('pairs test', 'MRR', 'b')
  assert (d.baseline_value, d.value) == (0.5, 0.7)
  assert d.difference == pytest.approx(0.2)
  assert d.relative == pytest.approx(0.4)
  assert (d.better, d.equal, d.worse, d.queries) == (3, 1, 1, 5)
  # Steps of one size: 3 of 4 up is as likely as 1 + 4 + 4 + 1 of 16 flips.
  assert d.p == d.p_holm == 10 / 16
  # Asked for twice it is compared once; the order in a file does not matter.
  (path,) = tmp_path.glob('b/evaluation/*/per_query.tsv')
  head, *rows = path.read_text().splitlines()
  path.write_text('\n'.join([head, *rows[::-1]]) + '\n')
  (again,) = compared(tmp_path, metrics=['MRR', 'MRR']).differences
  assert again.p_holm == d.p


def test_each_metric_has_a_correction_of_its_own(tmp_path):
  """Over all sets and models: here 2 x 2 tests by MRR."""
  rng = np.random.default_rng(0)
  for name in 'abc':
    for split in ('test', 'validation'):
      base = np.linspace(0, 0.5, 40)
      values = base + rng.normal(0.02 * (name != 'a'), 0.05, 40).clip(-0.1, 0.3)
      values = values.clip(0, 1).tolist()
      result_folders.of_column(tmp_path / name, 'MRR', values, split=split)
  found = compared(tmp_path, 'abc').differences
  where = [(d.evaluated.split, d.model) for d in found]
  splits = ('test', 'validation')
  assert where == [(split, model) for split in splits for model in 'bc']
  smallest, *others = sorted(found, key=lambda d: d.p)
  assert smallest.p_holm == pytest.approx(min(4 * smallest.p, 1))
  assert all(d.p < d.p_holm for d in others[:-1])


def test_metrics_are_those_of_the_papers_or_as_asked_for(tmp_path):
  metrics = {'P@1': 0.5, 'MRR': 0.5, 'nDCG@10': 0.5, 'Recall@100': 0.5}
  values = {'q': [0.5] * 4}
  sets = ('msmarco', None, 'validation'), ('beir', 'nq'), ('pairs',)
  for name in 'ab':
    for own in sets:
      result_folders.write(tmp_path / name, metrics, *own, per_query=values)

  def asked(**options):
    differences = compared(tmp_path, **options).differences
    return [(d.set_name, d.metric) for d in differences]

  names = 'MSMARCO validation', 'BEIR NQ test', 'pairs test'
  expected = [(names[0], 'P@1'), (names[0], 'MRR'), (names[1], 'nDCG@10')]
  expected += [(names[2], metric) for metric in ('P@1', 'MRR', 'nDCG@10')]
  assert asked() == expected
  wanted = ['Recall@100', 'MRR']
  expected = [(name, m) for name in names for m in wanted]
  assert asked(metrics=wanted) == expected
  with pytest.raises(UserError, match="metric 'NDCG@10'.*'nDCG@10'"):
    asked(metrics=['NDCG@10'])
  with pytest.raises(UserError, match='no result has P@5. Measure it: `dualen'):
    asked(metrics=['P@5'])


def test_sets_that_not_all_have_are_left_out_and_told(tmp_path):
  for name, datasets in (('a', ['nq', 'fiqa']), ('b', ['nq', 'scifact'])):
    for dataset in datasets:
      result_folders.of_column(
          tmp_path / name, 'nDCG@10', [0.5], task='beir', dataset=dataset
      )
    # Of the same short name as BEIR's.
    result_folders.of_column(
        tmp_path / name, 'nDCG@10', [0.5], task='multireqa',
        dataset='NaturalQuestions', split='validation',
    )
  comparison = compared(tmp_path, metrics=['nDCG@10'])
  names = [d.set_name for d in comparison.differences]
  assert names == ['NQ validation', 'BEIR NQ test']
  left_out = list(comparison.left_out)
  assert left_out == ['beir-fiqa test', 'beir-scifact test']
  # A metric that one lacks on a set is told, too.
  for name, metric in ((n, m) for n in 'ab' for m in ('MRR', 'P@5')):
    if (name, metric) != ('a', 'P@5'):
      path = tmp_path / name / 'evaluation' / 'beir-nq-test' / 'metrics.json'
      path.write_text(path.read_text().replace(
          '"metrics": {', f'"metrics": {{"{metric}": 0.5, '
      ))
      values = path.with_name('per_query.tsv')
      head, row = values.read_text().splitlines()
      values.write_text(f'{head}\t{metric}\n{row}\t0.5\n')
  comparison = compared(tmp_path, metrics=['MRR', 'P@5'])
  assert [d.metric for d in comparison.differences] == ['MRR']
  assert 'P@5 on BEIR NQ test' in comparison.left_out


def test_cqadupstack_is_one_set_of_the_mean_of_its_parts(tmp_path):
  """However many queries a part has, it counts as much as another."""
  for name, step in (('a', 0.0), ('b', 0.25)):
    for i, part in enumerate(beir.CQADUPSTACK_PARTS):
      # One part of 30 queries and 11 of 1; only the last is better.
      values = [0.5] * (30 if i == 0 else 1)
      values[0] += step * (i == 11)
      result_folders.of_column(
          tmp_path / name, 'nDCG@10', values, task='beir', dataset=part
      )
  (d,) = compared(tmp_path).differences
  assert d.set_name == 'BEIR CQADupStack test'
  assert d.baseline_value == pytest.approx(0.5)
  assert d.value == pytest.approx(0.5 + 0.25 / 12)
  assert (d.better, d.equal, d.worse) == (1, 40, 0)


def test_results_of_other_data_are_refused(tmp_path):
  for i, (change, message) in enumerate((
      ({'source': 'other'}, 'differ in "source": of the queries and other'),
      ({'queries': 5}, 'differ in "queries": 4 and 5'),
      ({'corpus': {'source': 'x'}}, 'differ in "corpus": .* and .*source.: .x'),
      (
          {'document_separator': '#'},
          'differ in "document_separator": None and #.*same flags',
      ),
      ({'relevance_level': 2}, '"relevance_level": None and 2.*same flags'),
  )):
    of_two(tmp_path / str(i), [0.5], [1.0], **change)
    with pytest.raises(UserError, match=message):
      compared(tmp_path / str(i))


def test_the_depth_of_metrics_counts_and_not_that_of_run_files(tmp_path):
  for name, depths in (
      ('a', {'k': 10, 'depth': 100}),
      ('b', {'k': 50, 'depth': 100}),
      ('deeper', {'k': 100, 'depth': 1000}),
  ):
    result_folders.of_column(tmp_path / name, 'MRR', [0.5], **depths)
    result_folders.of_column(tmp_path / name, 'MRR', [0.5], split='dev')
  assert compared(tmp_path, ('a', 'b')).differences[0].queries == 1
  with pytest.raises(UserError, match='"depth": 100 and 1000. Evaluate both'):
    compared(tmp_path, ('a', 'deeper'))


def test_queries_of_only_one_side_are_an_error(tmp_path):
  values = {f'q{i}': [0.5] for i in range(6)}
  result_folders.write(tmp_path / 'a', {'MRR': 0.5}, per_query=values)
  more = {'q0': [0.25], 'q1': [0.75], 'x': [0.5]}
  result_folders.write(tmp_path / 'b', {'MRR': 0.5}, per_query=more)
  message = 'queries with MRR: only one of them has 5, such as q2.'
  with pytest.raises(UserError, match=message):
    compared(tmp_path)


def test_a_metric_that_one_lacks(tmp_path):
  of_two(tmp_path, [0.5], [0.5])
  result_folders.of_column(tmp_path / 'c', 'P@1', [0.5])
  with pytest.raises(UserError, match='none of these metrics in common'):
    compared(tmp_path, 'ac')
  with pytest.raises(UserError, match='c has no MRR. Evaluate it again by --m'):
    compared(tmp_path, 'ac', metrics=['MRR'])
