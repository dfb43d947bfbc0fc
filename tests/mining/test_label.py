"""Pseudo labels through the command, against plain loops."""

import json
import math

from mining_set import QUERIES, read, write_scores
import numpy as np
import pytest
import shared_runs

from dualenc_jax.cli import label, main as cli
from dualenc_jax.utils.errors import UserError


def flags(tiny, output, *more):
  return [
      f'--run={tiny.folder / "run.trec"}',
      f'--teacher={tiny.folder / "scores.tsv"}', '--calibration=1,0',
      *tiny.flags(output, *more),
  ]


def labelled(tiny, output, *more):
  """Rows by query, counts and the report of what the command writes."""
  label.main(flags(tiny, output, *more))
  facts = json.loads((output / 'labels.json').read_text())
  report = (output / 'report.md').read_text()
  return read(output / 'pairs.jsonl'), facts['counts'], report


def write_queries(tiny, path, *more):
  """As queries that nobody has judged."""
  texts = [*tiny.made.queries.items(), *more]
  path.write_text(''.join(f'{q}\t{t}\n' for q, t in texts))
  return f'--queries={path}'


def sigmoid(x):
  return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    'more, above, below, positives, count, chance',
    [
        ([], 0.9, 0.1, 'best', 4, sigmoid),
        (['--positives=all', '--num_negatives=2'], 0.9, 0.1, 'all', 2, sigmoid),
        (['--positives=none'], 0.9, 0.1, 'none', 4, sigmoid),
        (['--above=0.6', '--below=0.4'], 0.6, 0.4, 'best', 4, sigmoid),
        (['--calibration=0.5,-1', '--above=0.6'], 0.6, 0.1, 'best', 4,
         lambda s: sigmoid(0.5 * s - 1)),
    ],
)
def test_of_labelled_queries(
    tiny, tmp_path, more, above, below, positives, count, chance
):
  found, *_ = labelled(tiny, tmp_path, *more)
  corpus = tiny.made.corpus
  assert found.keys() == tiny.made.qrels.keys()
  some = 0
  for query, row in found.items():
    gold, scores = tiny.gold(query), tiny.scores[query]
    pool = tiny.pool(query, gold).values()
    p = {passage: chance(scores[passage]) for passage in corpus}
    pseudo = [c for c in pool if p[c] > above]
    if positives == 'best':
      pseudo = sorted(pseudo, key=p.get)[-1:]
    if positives == 'none':
      pseudo = []
    some += len(pseudo)
    negatives = [c for c in pool if p[c] < below][:count]
    assert row['passage_id'] == gold + pseudo
    assert row['passage'] == [corpus[c] for c in gold + pseudo]
    origins = ['labelled'] * len(gold) + ['pseudo'] * len(pseudo)
    assert row['origin'] == origins
    assert row['negatives'] == [corpus[c] for c in negatives]
    for name, own in (('positive', gold + pseudo), ('negative', negatives)):
      assert row[f'{name}_scores'] == pytest.approx(
          [scores[c] for c in own], rel=1e-6
      )
      assert row[f'{name}_probabilities'] == pytest.approx(
          [p[c] for c in own], rel=1e-5
      )
  assert bool(some) == (positives != 'none')


def test_what_is_at_a_threshold_is_neither(tiny, tmp_path):
  zeros = {q: dict.fromkeys(own, 0.0) for q, own in tiny.scores.items()}
  path = write_scores(tmp_path / 'scores.tsv', zeros)
  more = f'--teacher={path}', '--above=0.5', '--below=0.5'
  for row in labelled(tiny, tmp_path / 'out', *more)[0].values():
    assert 'pseudo' not in row['origin'] and not row['negatives']


def test_of_queries_without_labels(tiny, tmp_path, capsys):
  # One of them is asked twice.
  again = 'again', tiny.made.queries['q0']
  queries = write_queries(tiny, tmp_path / 'queries.tsv', again)
  path = tmp_path / 'truth.tsv'
  path.write_text('query-id\tcorpus-id\tscore\n' + ''.join(
      f'{query}\t{passage}\t1\n'
      for query in tiny.scores
      for passage in tiny.gold(query)
  ))
  found, counts, report = labelled(
      tiny, tmp_path / 'out', queries, f'--truth={path}', '--above=0.8'
  )
  right, wrong = [], []
  for query, scores in tiny.scores.items():
    pool, gold = [*tiny.pool(query, []).values()], tiny.gold(query)
    p = {c: sigmoid(scores[c]) for c in pool}
    best = max(pool, key=p.get)
    negatives = [c for c in pool if p[c] < 0.1][:4]
    # Nothing is left of a query without either.
    assert (query in found) == bool(p[best] > 0.8 and negatives)
    if query in found:
      right.append(best in gold)
      wrong += [c in gold for c in negatives]
      assert found[query]['passage_id'] == [best]
      assert found[query]['origin'] == ['pseudo']
  assert found and right and wrong
  with pytest.raises(UserError, match='No query is left .*none/report.md coun'):
    labelled(tiny, tmp_path / 'none', queries, '--below=1e-99')
  row = (
      f'| 0.8 / 0.1 | {len(right) / QUERIES:.1%} | {np.mean(right):.1%} |'
      f' {1 - np.mean(wrong):.1%} | {len(right)}, {len(wrong)} |'
  )
  said = capsys.readouterr()
  assert row in report and row in said.out
  assert f'1 of {QUERIES + 1} queries have the text of an earlier' in said.err
  assert counts['queries'] == QUERIES
  assert counts['queries_written'] == len(found)
  with pytest.raises(UserError, match='other sources, by source in .*labels.j'):
    label.main(flags(tiny, tmp_path / 'out'))


@pytest.mark.parametrize('split', ['', 'test'])
def test_queries_of_evaluation_splits_are_left_out(tiny, tmp_path, split):
  """Also of those without labels, whatever split lends its corpus."""
  more = []
  if split:
    queries = write_queries(tiny, tmp_path / 'queries.tsv')
    more = [queries, f'--split={split}']
  test = tiny.folder / 'beir/qrels/test.tsv'
  test.write_text('query-id\tcorpus-id\tscore\nq1\td1\t1\nq3\td1\t1\n')
  try:
    found, counts, _ = labelled(tiny, tmp_path / 'out', *more)
  finally:
    test.unlink()
  assert counts['queries_of_evaluation_splits'] == 2
  assert not {'q1', 'q3'} & found.keys()
  assert split or len(found) == QUERIES - 2


@pytest.mark.slow
def test_by_a_cross_encoder_with_its_calibration(tmp_path):
  teacher, out = shared_runs.cross_encoder(), tmp_path / 'out'
  files = [teacher.with_name(f'{name}.jsonl') for name in ('train', 'test')]
  assert cli.main([
      'label', '--bm25', f'--teacher={teacher}', f'--output_dir={out}',
      '--above=0.5', '--below=0.4', *map(str, files),
      '--gin.VOCABULARY=python_code_8k',
  ]) == 0
  facts = json.loads((teacher / 'calibration.json').read_text())
  rows = read(out / 'pairs.jsonl')
  for row in rows.values():
    for name in ('positive', 'negative'):
      logits = facts['slope'] * np.array(row[f'{name}_scores'])
      np.testing.assert_allclose(
          row[f'{name}_probabilities'],
          1 / (1 + np.exp(-logits - facts['intercept'])), rtol=1e-6,
      )
    assert all(p < 0.4 for p in row['negative_probabilities'])
  assert any(row['negatives'] for row in rows.values())


@pytest.mark.parametrize(
    'more, message',
    [
        (['--above=0.1', '--below=0.9'], 'The thresholds are 0.1 and 0.9'),
        (['--calibration=-1,0'], 'with a slope above 0'),
        (['--calibration=1'], 'expected two numbers separated by'),
        (['--queries=x.tsv', '--positives=none'], 'leave out --positives=none'),
    ],
)
def test_what_cannot_be(tiny, tmp_path, more, message):
  with pytest.raises(UserError, match=message):
    label.main(flags(tiny, tmp_path / 'out', *more))


def test_bad_scores_and_calibrations(tiny, tmp_path):
  path, out = tmp_path / 'few.tsv', tmp_path / 'out'

  def refused(message, *more):
    with pytest.raises(UserError, match=message):
      labelled(tiny, out, f'--teacher={path}', *more)

  write_scores(path, {'q0': tiny.scores['q0']})
  refused(r'few.tsv has no score of \d+ of')
  bare = [f for f in flags(tiny, out) if 'calibration' not in f]
  with pytest.raises(UserError, match='scores.tsv has no calibration'):
    label.main(bare)
  path.write_text('q0\td0\tnan\n')
  refused('few.tsv:1: the score is nan')
  # Probabilities where logits are wanted.
  write_scores(path, {
      query: {name: sigmoid(score) for name, score in own.items()}
      for query, own in tiny.scores.items()
  })
  refused('All .* of the teacher are from 0 to 1')
