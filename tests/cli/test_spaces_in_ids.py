"""Ids with white space, as most of CLIMATE-FEVER's passages have."""

import json
import urllib.parse

import pytest
import pytrec_eval
import tiny_beir
from tiny_evaluation import result_of, run_of, shared_model

from dualenc_jax.cli import main as cli
from dualenc_jax.evaluation.results.result_files import read_per_query

TINY = tiny_beir.make(0)
# Of the same order, so that ties are ordered alike.
SPACED = tiny_beir.TinySet(
    {f'A b\u00a0{i}': text for i, text in TINY.corpus.items()},
    {f'why {i}': text for i, text in TINY.queries.items()},
    {
        f'why {q}': {f'A b\u00a0{i}': g for i, g in grades.items()}
        for q, grades in TINY.qrels.items()
    },
)


def flags(folder):
  return [
      f'--model_dir={shared_model()}', '--gin_file=tasks/beir.gin',
      f'--gin.BEIR_FOLDER={folder}',
  ]


def run(command, *argv):
  assert cli.main([command, *map(str, argv)]) == 0


def test_every_command_takes_them(tmp_path, capsys):
  for name, data in ('plain', TINY), ('spaced', SPACED):
    data.write(tmp_path / name)
    out = f'--output_dir={tmp_path / name / "out"}'
    run('evaluate', *flags(tmp_path / name), out, '--no_baselines')
  plain, spaced = tmp_path / 'plain/out', tmp_path / 'spaced/out'
  assert result_of(plain)['metrics'] == result_of(spaced)['metrics']
  hits = {
      urllib.parse.unquote(q): {
          urllib.parse.unquote(passage): score for passage, score in own
      }
      for q, own in run_of(spaced).items()
  }
  assert hits.keys() == SPACED.queries.keys()
  assert {*hits['why q0']} == {*SPACED.corpus}
  reference = pytrec_eval.RelevanceEvaluator(SPACED.qrels, {'map'})
  maps = [own['map'] for own in reference.evaluate(hits).values()]
  metrics = result_of(spaced)['metrics']
  assert sum(maps) / len(maps) == pytest.approx(metrics['MAP'])
  assert read_per_query(spaced / 'per_query.tsv').queries[0] == 'why%20q0'
  # Of the run file alone, with BEIR's own qrels: the same figures.
  capsys.readouterr()
  file = spaced / 'run.trec'
  qrels = f'--qrels={tmp_path / "spaced/qrels/test.tsv"}'
  run('compare', file, file, qrels, '--names=one,two')
  assert capsys.readouterr().out.count(f'{metrics["MRR"] * 100:.1f}') >= 2
  given, index = flags(tmp_path / 'spaced'), f'--index_dir={tmp_path / "index"}'
  run('encode', *given, index)
  run('search', given[0], index, 'cache hash')
  assert 'spaced/corpus.jsonl:' in capsys.readouterr().out
  mined = tmp_path / 'mined'
  run(
      'mine', *given, '--split=test', f'--run={file}', f'--output_dir={mined}',
      '--num_negatives=2',
  )
  rows = (mined / 'pairs.jsonl').read_text().splitlines()
  assert all(json.loads(row)['query_id'] in SPACED.queries for row in rows)

