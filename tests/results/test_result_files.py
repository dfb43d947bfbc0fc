"""Result folders: read, checked, and what is wrong with damaged ones."""

import math
import shutil

import numpy as np
import pytest
import result_folders

from dualenc_jax.evaluation.results import result_files
from dualenc_jax.evaluation.results.result_files import (
  Key,
  read_per_query,
  write_per_query,
)
from dualenc_jax.utils.errors import UserError


def test_the_file_is_as_documented_and_comes_back_bit_for_bit(tmp_path):
  path = tmp_path / 'per_query.tsv'
  values = {
      'P@1': np.array([1.0, math.nan, 0.5]), 'MRR': np.array([1.0, 1 / 3, 1.0])
  }
  write_per_query(path, ['a', 'b \u2028 é', 'c"'], values)
  # Ids as in run files, so that what trec_eval splits at parts a line.
  odd = 'b%20\u2028%20é'
  assert path.read_text() == (
      f'query_id\tP@1\tMRR\na\t1.0\t1.0\n{odd}\t\t0.3333333333333333\n'
      'c"\t0.5\t1.0\n'
  )
  assert [p.name for p in tmp_path.iterdir()] == ['per_query.tsv']
  got = read_per_query(path)
  assert list(got.query_ids) == ['a', odd, 'c"']
  assert list(got.values) == list(values)
  for metric, column in values.items():
    np.testing.assert_array_equal(got.values[metric], column)
  assert got.column('P@1') == {'a': 1.0, 'c"': 0.5}
  assert got.mean('P@1') == 0.75


@pytest.mark.parametrize(
    'text, message',
    [
        ('id\tMRR\n', r':1: the header is .*; expected query_id'),
        ('query_id\tMRR\n', ' has no query'),
        ('query_id\tMRR\na\t1.0\nb\n', r":3: \['b'\]; expected .* 1 finite"),
        ('query_id\tMRR\na\tinf\n', r":2: \['a', 'inf'\]; expected"),
        ('query_id\tMRR\na\t1\na\t1\n', r":3: \['a', '1'\]; expected"),
        ('query_id\tMRR\n\t1\n', r":2: \['', '1'\]; expected each query"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
  path = tmp_path / 'per_query.tsv'
  path.write_text(text)
  with pytest.raises(UserError, match=message) as error:
    read_per_query(path)
  assert str(error.value).endswith(' Run `dualenc evaluate` again.')


def test_a_model_is_read_from_any_of_its_folders(tmp_path):
  model_dir = tmp_path / 'my_model'
  one = result_folders.write(model_dir, {'MRR': 0.5}, 'beir', 'scifact')
  result_folders.write(model_dir, {'MRR': 0.25}, split='validation')
  scifact = Key('beir', 'scifact', 'beir-scifact', 'test')
  pairs = Key('pairs', None, 'pairs', 'validation')
  for path in (model_dir, model_dir / 'evaluation'):
    model = result_files.read_model(path)
    assert model.name == 'my_model'
    assert model.where == str(path)
    assert {*model.results} == {scifact, pairs}
  model = result_files.read_model(one, name='mine')
  assert model.name == 'mine'
  assert model.results[scifact].metrics == {'MRR': 0.5}
  assert model.results[scifact].provenance['checkpoint_step'] == 20_000


def test_per_query_values_are_checked_against_the_means(tmp_path):
  values = {'a': [1.0], 'b': [0.5], 'c': [1 / 3]}
  mean = math.fsum([1.0, 0.5, 1 / 3]) / 3
  good = result_folders.write(
      tmp_path / 'good', {'MRR': mean + 5e-10}, per_query=values
  )
  result = result_files.read_result(good)
  assert result.per_query().column('MRR')['b'] == 0.5
  bad = result_folders.write(
      tmp_path / 'bad', {'MRR': mean + 5e-9}, per_query=values
  )
  result = result_files.read_result(bad)
  with pytest.raises(UserError, match='the mean of MRR is 0.61.*json has'):
    result.per_query()


@pytest.mark.parametrize(
    'change, message',
    [
        ({'metrics': {}}, 'the metrics are {}; expected shares'),
        ({'metrics': {'MRR': 52.0}}, "metrics are {'MRR': 52.0}; expected sha"),
        ({'label': None}, 'label is None'),
        ({'checkpoint_step': '40'}, "is '40'; expected int"),
    ],
)
def test_fields_of_metrics_json_are_checked(tmp_path, change, message):
  folder = result_folders.write(tmp_path / 'm', {'MRR': 0.5}, **change)
  with pytest.raises(UserError, match=f'metrics.json: .*{message}'):
    result_files.read_result(folder)


def test_no_results_and_two_on_one_split(tmp_path):
  with pytest.raises(UserError, match='x.tsv cannot be read: No such file'):
    read_per_query(tmp_path / 'x.tsv')
  with pytest.raises(UserError, match='has no results.*dualenc evaluate'):
    result_files.read_model(tmp_path)
  folder = result_folders.write(tmp_path / 'm', {'MRR': 0.5})
  shutil.copytree(folder, folder.with_name('copy'))
  with pytest.raises(UserError, match='copy.*pairs-test.*both .* pairs test'):
    result_files.read_model(tmp_path / 'm')
  (folder / 'metrics.json').write_text('{"metrics": {')
  with pytest.raises(UserError, match='is not JSON.*`dualenc evaluate` again'):
    result_files.read_result(folder)
