"""Ids with white space, as most of CLIMATE-FEVER's passages have."""

import json
import urllib.parse

import pytest
import pytrec_eval
import tiny_beir
from tiny_evaluation import link_model, result_of, run_of

from dualenc_jax.commands import cli
from dualenc_jax.results.folder import read_per_query

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


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('spaced')
  TINY.write(path / 'plain')
  SPACED.write(path / 'spaced')
  link_model(path)
  return path


def flags(folder, name):
  return [
      f'--model_dir={folder / "model"}', '--gin_file=tasks/beir.gin',
      f'--gin.BEIR_FOLDER={folder / name}',
  ]


def evaluate(folder, name):
  out = folder / f'{name}_out'
  assert cli.main([
      'evaluate', *flags(folder, name), f'--output_dir={out}', '--baselines='
  ]) == 0
  return out


@pytest.mark.slow
def test_every_command_takes_them(folder, capsys):
  plain, spaced = (evaluate(folder, name) for name in ('plain', 'spaced'))
  assert result_of(plain)['metrics'] == result_of(spaced)['metrics']
  run = {
      urllib.parse.unquote(q): {
          urllib.parse.unquote(passage): score for passage, score in hits
      }
      for q, hits in run_of(spaced).items()
  }
  assert run.keys() == SPACED.queries.keys()
  assert {*run['why q0']} == {*SPACED.corpus}
  reference = pytrec_eval.RelevanceEvaluator(SPACED.qrels, {'map'})
  maps = [own['map'] for own in reference.evaluate(run).values()]
  assert sum(maps) / len(maps) == pytest.approx(
      result_of(spaced)['metrics']['MAP']
  )
  assert read_per_query(spaced / 'per_query.tsv').query_ids[0] == 'why%20q0'
  # Of the run file alone, with BEIR's own qrels: the same figures.
  capsys.readouterr()
  for name in ('plain', 'spaced'):
    qrels = folder / name / 'qrels/test.tsv'
    out = folder / f'{name}_out'
    assert cli.main([
        'compare', f'{out}/run.trec', f'{out}/run.trec', f'--qrels={qrels}',
        '--names=one,two', f'--output_dir={folder / f"{name}_compared"}',
    ]) == 0
  told = capsys.readouterr().out
  assert told.count(f'{result_of(spaced)["metrics"]["MRR"] * 100:.1f}') >= 4
  index = f'--index_dir={folder / "index"}'
  assert cli.main(['encode', *flags(folder, 'spaced'), index]) == 0
  assert cli.main(
      ['search', f'--model_dir={folder / "model"}', index, 'cache hash']
  ) == 0
  assert 'spaced/corpus.jsonl:' in capsys.readouterr().out
  mined = folder / 'mined'
  assert cli.main([
      'mine', *flags(folder, 'spaced'), '--split=test',
      f'--run={spaced / "run.trec"}', f'--output_dir={mined}',
      '--num_negatives=2',
  ]) == 0
  rows = (mined / 'pairs.jsonl').read_text().splitlines()
  assert all(json.loads(row)['query_id'] in SPACED.queries for row in rows)


@pytest.mark.slow
def test_ids_that_would_be_one_are_found_before_anything_is_encoded(
    folder, capsys, tmp_path
):
  texts = [*TINY.corpus.values()]
  twice = tiny_beir.TinySet(
      {'a b': texts[0], 'a%20b': texts[1]}, {'q': 'cache'}, {'q': {'a b': 1}}
  )
  twice.write(folder / 'twice')
  assert cli.main([
      'evaluate', *flags(folder, 'twice'), f'--output_dir={tmp_path}'
  ]) == 2
  assert "'a b' and id 'a%20b' are the same in a" in capsys.readouterr().err
