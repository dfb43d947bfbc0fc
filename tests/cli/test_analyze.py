"""`dualenc analyze` on tiny runs: files, an index, several models, errors."""

import csv
import json
import pathlib

import numpy as np
import pytest
import tiny_beir
import tiny_evaluation
import tiny_run

from dualenc_jax.cli import analyze
from dualenc_jax.evaluation.analysis import embedding_space
from dualenc_jax.utils.errors import UserError

FIGURES = (
    'tsne pca top1_cosine bit_shares similarity_ratio positive_cosines'
).split()
NUMBERS = {
    'separability', 'uniformity_queries', 'uniformity_passages',
    'alignment', 'median_top1_cosine', 'median_ratio', 'ratios_near_one',
    'positive_query_cosine', 'positive_negative_cosine',
    'positive_query_cosine_sd', 'positive_negative_cosine_sd',
    'dimensional_efficiency',
}
SMALL = '--sample=15'


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """The model_dir `one`."""
  return tiny_evaluation.copy_model(tmp_path_factory.mktemp('run') / 'one')


@pytest.fixture(scope='module')
def analysis(model) -> pathlib.Path:
  analyze.main([f'--model_dir={model}', SMALL])
  return model / 'analysis' / 'pairs-test'


def read_csv(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


def contents(folder):
  return {
      str(path.relative_to(folder)): path.read_bytes()
      for path in sorted(folder.rglob('*'))
      if path.is_file()
  }


def test_every_figure_has_its_files_and_every_number_is_there(analysis):
  facts = json.loads((analysis / 'analysis.json').read_text())
  assert (facts['label'], facts['split']) == ('pairs', 'test')
  assert (facts['model_dir'], facts['checkpoint_step']) == ('one', 2)
  assert (facts['queries'], facts['passages']) == (23, 24)
  assert [figure['name'] for figure in facts['figures']] == FIGURES
  for figure in facts['figures']:
    assert figure['title'] and 'one (step 2); seed 0.' in figure['caption']
    png = (analysis / figure['png']).read_bytes()
    assert png[:8] == b'\x89PNG\r\n\x1a\n'
    assert (analysis / figure['svg']).read_text().lstrip().startswith('<?xml')
    assert read_csv(analysis / figure['csv'])
  numbers = facts['numbers']
  assert {*numbers} == NUMBERS
  assert all(np.isfinite(value) for value in numbers.values())
  assert 0 <= numbers['separability'] <= 1


def test_the_same_command_writes_the_same_bytes(model, analysis, tmp_path):
  out, index = (f'--{n}_dir={tmp_path / n}' for n in ('output', 'index'))
  analyze.main([f'--model_dir={model}', out, index, SMALL])
  assert contents(tmp_path / 'output') == contents(analysis)


def test_models_side_by_side(model, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(embedding_space, '_MEASURED', 15)
  output = tmp_path / 'out'
  # Its files have the content of those of the other.
  other = tiny_evaluation.write_random(tmp_path / 'two')
  flags = [f'--model_dir={model}', f'--model_dir={other}']
  flags += ['--names=first , second', f'--output_dir={output}', SMALL]
  analyze.main(flags)
  facts = json.loads((output / 'analysis.json').read_text())
  assert [model['model_dir'] for model in facts['models']] == ['one', 'two']
  first, second = (model['numbers'] for model in facts['models'])
  assert first.keys() == second.keys() and first != second
  printed = capsys.readouterr().out
  assert 'first' in printed and f'{second["median_ratio"]:.4f}' in printed
  for figure in facts['figures']:
    assert 'first (step 2), second (step 7)' in figure['caption']
    assert (output / figure['png']).exists()
  tiny_run.write_pairs(tmp_path / 'test.jsonl', 24, seed=9)
  with pytest.raises(UserError, match='first and second are from different'):
    analyze.main(flags)


def test_a_set_without_relevant_passages_is_told(model, tmp_path, capsys):
  made = tiny_beir.make(0, queries=12)
  nothing = {query: {'d1': 0} for query in made.queries}
  made._replace(qrels=nothing).write(tmp_path / 'beir')
  analyze.main([
      f'--model_dir={model}', '--sample=12', '--tasks=beir',
      f'--gin.BEIR_FOLDER={tmp_path / "beir"}',
      f'--output_dir={tmp_path / "out"}',
  ])
  printed = capsys.readouterr().out
  assert 'cosines of relevant passages are left out: fewer than 10' in printed
  facts = json.loads((tmp_path / 'out' / 'analysis.json').read_text())
  assert [figure['name'] for figure in facts['figures']] == FIGURES[:4]
  assert not {'alignment', 'positive_query_cosine'} & {*facts['numbers']}


@pytest.mark.parametrize(
    'flags, message',
    [
        (['--sample=9'], '--sample is 9; expected at least 10'),
        (['--index_dir=a', '--index_dir=b'], '2 --index_dir for 1 --model_dir'),
        (['--model_dir=two'], 'give --output_dir'),
        (['--names=a,b'], 'names of 1 models are a,b'),
        (['--model_dir=two', '--names=a,a'], 'names of 2 models are a,a'),
    ],
)
def test_flags_that_make_no_sense(flags, message):
  with pytest.raises(UserError, match=message):
    analyze.main(['--model_dir=one', *flags])
