"""`dualenc compare` of run files, result folders and model_dirs together."""

import gzip
import json
import pathlib
import re

import numpy as np
import pytest
import pytrec_eval
import result_folders

from dualenc_jax.cli import compare
from dualenc_jax.utils.errors import UserError

QUERIES = [f'q{i}' for i in range(12)]
DOCUMENTS = [f'd{i}' for i in range(30)]


def random_run(seed):
  rng = np.random.default_rng(seed)
  return {
      q: dict(zip(DOCUMENTS, rng.permutation(30).astype(float).tolist()))
      for q in QUERIES
  }


def text_of(run):
  return ''.join(
      f'{q} Q0 {d} 0 {score} x\n'
      for q, hits in run.items()
      for d, score in hits.items()
  )


@pytest.fixture
def systems(tmp_path):
  """A packed run, two model_dirs with the run.trec of a result, and qrels."""
  rng = np.random.default_rng(9)
  runs = {name: random_run(i) for i, name in enumerate(('bm25', 'one', 'two'))}
  qrels = {
      q: {d: int(rng.integers(0, 3)) for d in DOCUMENTS[:15]} for q in QUERIES
  }
  (tmp_path / 'bm25.trec.gz').write_bytes(
      gzip.compress(text_of(runs['bm25']).encode())
  )
  for name in ('one', 'two'):
    for split in ('test', 'validation'):
      own = result_folders.of_column(
          tmp_path / name, 'MRR', [0.5], split=split, model_dir='my_model'
      )
      if split == 'test':
        (own / 'run.trec').write_text(text_of(runs[name]))
        runs[f'{name} folder'] = own
  (tmp_path / 'qrels').write_text(''.join(
      f'{q} 0 {d} {grade}\n' for q, own in qrels.items()
      for d, grade in own.items()
  ))
  return runs, qrels, f'--qrels={tmp_path / "qrels"}'


@pytest.mark.parametrize('level', [None, 2])
def test_all_kinds_together_as_pytrec_eval(systems, tmp_path, capsys, level):
  runs, qrels, flag = systems
  argv = [
      str(tmp_path / 'bm25.trec.gz'), str(tmp_path / 'one'),
      str(runs['two folder']), flag,
      '--metrics=P@1,MAP,MRR,nDCG@10,Recall@7,Success@5,MAP@20',
      *([f'--relevance_level={level}'] if level else []),
  ]
  compare.main(argv)
  printed = capsys.readouterr().out
  assert ('of grade 2 or more' in printed) == bool(level)
  lines = printed.splitlines()
  # Both models are called my_model.
  heads = lines[1].split()
  assert heads[:4] == ['Task', 'Metric', 'bm25', 'my_model']
  assert heads[4].startswith('(one/')
  names = (
      'P_1', 'map', 'recip_rank', 'ndcg_cut_10', 'recall_7', 'success_5',
      'map_cut_20',
  )
  evaluator = pytrec_eval.RelevanceEvaluator(
      qrels, {re.sub(r'_(?=\d)', '.', name) for name in names},
      relevance_level=level or 1
  )
  theirs = {
      name: evaluator.evaluate(runs[name]) for name in ('bm25', 'one', 'two')
  }
  for line, name in zip(lines[2:], names):
    shown = [float(cell.rstrip('*')) for cell in line.split()[2:]]
    expected = [
        100 * np.mean([values[name] for values in own.values()])
        for own in theirs.values()
    ]
    assert shown == pytest.approx(expected, abs=0.00501), name


def test_run_files_of_result_folders(systems, tmp_path, capsys):
  runs, _, flag = systems
  one = runs['one folder']
  (other,) = (p for p in one.parent.iterdir() if p != one)
  (other / 'run.trec').write_text(text_of(runs['two']))
  bm25, path = str(tmp_path / 'bm25.trec.gz'), one / 'run.trec'
  # A file in a folder is called as its model.
  compare.main([bm25, str(path), flag])
  head = capsys.readouterr().out.splitlines()[1]
  assert head.split()[2:4] == ['bm25', 'my_model']
  with pytest.raises(UserError, match=f'has 2 run.trec with .* {other}'):
    compare.main([bm25, str(tmp_path / 'one'), flag])


QRELS = """q1 0 d1 1
q1 0 d2 0
q2 0 d3 2
q2 0 d4 1
q3 0 d5 1
q4 0 d6 0
"""
# q1: d1 first; q2: d4 first, d3 second; q3: nothing found.
GOOD = """q1 Q0 d1 1 3 x
q1 Q0 d2 2 2 x
q2 Q0 d4 1 3 x
q2 Q0 d3 2 2 x
q3 Q0 d9 1 1 x
q4 Q0 d6 1 1 x
"""
# q1 by a tie, of which d2 is first; q2 is not ranked.
BAD = """q1 Q0 d1 1 2 x
q1 Q0 d2 2 2 x
q3 Q0 d5 1 1 x
"""


@pytest.fixture
def runs(tmp_path):
  """Two runs and their qrels."""
  paths = {}
  for name, text in (('good', GOOD), ('bad', BAD), ('qrels', QRELS)):
    paths[name] = tmp_path / f'{name}.trec'
    paths[name].write_text(text)
  return paths


def differences(tmp_path, *argv):
  compare.main([*map(str, argv), f'--output_dir={tmp_path}'])
  return json.loads((tmp_path / 'comparison.json').read_text())['differences']


def test_runs_of_different_depths_need_k(tmp_path, runs, capsys):
  deeper = tmp_path / 'deeper.trec'
  deeper.write_text(GOOD + 'q1 Q0 d7 3 1 x\n')
  args = [str(runs['good']), str(deeper), f'--qrels={runs["qrels"]}']
  with pytest.raises(UserError, match='"depth": 2 and 3. --k uses'):
    compare.main(args)
  compare.main([*args, '--k=2'])
  # Of the tie in q1 only d2 is left, as trec_eval's order has it.
  args[1] = str(runs['bad'])
  compare.main([args[1], args[2], '--k=1', '--metrics=Recall@1'])
  said = 'bad, 4 queries of qrels:\n  Recall@1        0.2500\n'
  assert capsys.readouterr().out.endswith(said)
  (row,) = differences(tmp_path, *args, '--k=1', '--metrics=Recall@1')
  assert row['value'] == pytest.approx(1 / 4)
  assert row['baseline_value'] == pytest.approx(1.5 / 4)


def test_what_is_refused(tmp_path, runs):
  a, b = (str(tmp_path / name) for name in 'ab')
  for path in (a, b):
    result_folders.of_column(pathlib.Path(path), 'MRR', [0.5])
  good, bad, qrels = (str(runs[name]) for name in ('good', 'bad', 'qrels'))
  other = tmp_path / 'other_qrels'
  other.write_text('x 0 d1 1\n')
  for args, message in (
      ([a], 'two or more systems'),
      ([good, a, f'--qrels={qrels}'], 'a has no run.trec with queries of'),
      ([good, bad], 'good.trec is a run file: give --qrels'),
      (
          [good, bad, f'--qrels={good}'],
          f'^--qrels: {good}:1: a line of a TREC run. Expected j',
      ),
      ([qrels, bad, f'--qrels={qrels}'], 'qrels.trec holds judgements, which'),
      ([good, bad, f'--qrels={other}'], 'good.trec with --qrels .*other_qrels'),
      (
          [good, f'--qrels={qrels}', '--metrics=Recall@1,Recall@10'],
          'Recall@10 needs 10 hits a query, but .*good.trec gives 2',
      ),
      (
          [good, f'--qrels={qrels}', '--metrics=MRR@2', '--k=1'],
          'MRR@2 needs 2 hits a query, but --k gives 1',
      ),
      ([good, f'--qrels={qrels}', '--metrics=Top-5'], 'Top-5 needs answers'),
      ([a, b, '--k=5'], '--k and --relevance_level need --qrels'),
      ([good, bad, f'--qrels={qrels}', '--relevance_level=9'], 'above 2'),
      ([a, b, '--names=x'], '--names has 1 names for 2 systems'),
      ([a, b, f'--output_dir={good}'], 'cannot be written'),
  ):
    with pytest.raises(UserError, match=message):
      compare.main(args)
