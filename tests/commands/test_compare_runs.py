"""`dualenc compare` of run files, result folders and model_dirs together."""

import gzip
import json

import numpy as np
import pytest
import pytrec_eval
import result_folders

from dualenc_jax.commands import cli, compare
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import trec

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
  output = tmp_path / 'out'
  argv = [
      'compare', str(tmp_path / 'bm25.trec.gz'), str(tmp_path / 'one'),
      str(runs['two folder']), flag, f'--output_dir={output}',
      '--metrics=P@1,MAP,MRR,nDCG@10,Recall@10',
      *([f'--relevance_level={level}'] if level else []),
  ]
  assert cli.main(argv) == 0
  printed = capsys.readouterr().out
  assert ('of grade 2 or more' in printed) == bool(level)
  lines = printed.splitlines()
  # Both models are called my_model: the part of the path that differs.
  assert lines[1].split() == ['Task', 'Metric', 'bm25', 'one', 'two']
  names = 'P_1', 'map', 'recip_rank', 'ndcg_cut_10', 'recall_10'
  evaluator = pytrec_eval.RelevanceEvaluator(
      qrels, {*names}, relevance_level=level or 1
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


def test_a_run_file_of_a_result_folder_is_called_as_its_model(
    systems, tmp_path, capsys
):
  runs, _, flag = systems
  path = runs['one folder'] / 'run.trec'
  bm25 = tmp_path / 'bm25.trec.gz'
  compare.main([str(bm25), str(path), f'{bm25}+{path}', flag])
  head = capsys.readouterr().out.splitlines()[1]
  assert head.split() == ['Task', 'Metric', 'bm25', 'my_model', 'bm25+my_model']


def test_a_folder_with_two_runs_of_the_queries(systems, tmp_path):
  runs, _, flag = systems
  one = runs['one folder']
  (other,) = (p for p in one.parent.iterdir() if p != one)
  (other / 'run.trec').write_text(text_of(runs['two']))
  bm25 = str(tmp_path / 'bm25.trec.gz')
  with pytest.raises(UserError, match=f'has 2 run.trec with .* {other}'):
    compare.main([bm25, str(tmp_path / 'one'), flag])
  compare.main([bm25, str(one), flag])


def test_the_table_is_narrow_and_wide_by_a_flag(systems, tmp_path, capsys):
  _, _, flag = systems
  argv = [str(tmp_path / 'bm25.trec.gz'), str(tmp_path / 'one'), flag]
  compare.main(argv)
  narrow = capsys.readouterr().out.splitlines()
  assert narrow[1].split()[2:] == ['bm25', 'my_model', 'difference', 'p']
  assert max(map(len, narrow[1:-2])) <= 79
  compare.main([*argv, '--wide', f'--output_dir={tmp_path / "out"}'])
  wide = capsys.readouterr().out.splitlines()
  rows = json.loads((tmp_path / 'out/comparison.json').read_text())
  assert wide[1].endswith('randomization p  randomization Holm')
  for row, line in zip(rows['differences'], narrow[2:]):
    _, metric, value, *_, p = line.split()
    assert metric == row['metric']
    assert float(value) == pytest.approx(
        100 * row['baseline_value'], abs=0.00501
    )
    assert float(p) == pytest.approx(row['randomization_p_holm'], abs=5.01e-5)


def test_published_runs(tmp_path, shared, capsys):
  """BM25 and TAS-B on TREC DL 2019, of which the figures are published."""
  folder = shared / 'data/msmarco_v1_dl1920'
  qrels = folder / 'qrels_full/qrels.dl19-passage.txt'
  path = folder / 'runs/dl19.BM25.txt'
  argv = [
      str(path), str(folder / 'runs/dl19.D_BERT_KD_TASB.txt'),
      f'--qrels={qrels}',
  ]
  compare.main([*argv, '--metrics=nDCG@10', f'--output_dir={tmp_path}'])
  (row,) = json.loads((tmp_path / 'comparison.json').read_text())['differences']
  assert row['queries'] == 43
  assert f'{row["baseline_value"]:.4f}' == '0.5058'
  assert f'{row["value"]:.4f}' == '0.7210'
  assert row['randomization_p'] < 0.001 and row['t_test_p'] < 0.001
  # MAP of BM25 is published with grade 2 as relevant.
  capsys.readouterr()
  metrics = '--metrics=MAP,MRR,nDCG@10,Recall@1000'
  compare.main([*argv, '--relevance_level=2', metrics])
  lines = capsys.readouterr().out.splitlines()[2:6]
  names = 'map', 'recip_rank', 'ndcg_cut_10', 'recall_1000'
  theirs = pytrec_eval.RelevanceEvaluator(
      trec.read_qrels(qrels), {*names}, relevance_level=2
  ).evaluate(trec.read_run(path))
  for line, name in zip(lines, names):
    mean = np.mean([values[name] for values in theirs.values()])
    assert line.split()[2].rstrip('*') == f'{100 * mean:.2f}', name


def test_a_relevance_level_above_all_grades(systems, capsys):
  runs, _, flag = systems
  folders = [str(runs[f'{name} folder']) for name in ('one', 'two')]
  with pytest.raises(UserError, match='level is 3, but no grade .* above 2'):
    compare.main([*folders, flag, '--relevance_level=3'])


def test_a_model_and_a_folder_within_it(tmp_path, capsys):
  """As `evaluate --prompt` leaves them."""
  outer, inner = tmp_path / 'm', tmp_path / 'm' / 'prompt-x'
  for path, value in ((outer, 0.5), (inner, 1.0)):
    result_folders.of_column(path, 'MRR', [value] * 4, model_dir='m')
  compare.main([str(outer), str(inner)])
  out = capsys.readouterr().out
  assert 'against m (' in out and 'prompt-x' in out
