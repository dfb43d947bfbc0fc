"""Result folders: read, checked, and what is wrong with damaged ones."""

import math
import shutil

import numpy as np
import pytest
import result_folders

from dualenc_jax.evaluation.metrics import Scores
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
  write_per_query(path, Scores(['a', 'b \u2028 é', 'c"'], values))
  # Ids as in run files, so that what trec_eval splits at parts a line.
  odd = 'b%20\u2028%20é'
  assert path.read_text() == (
      f'query_id\tP@1\tMRR\na\t1.0\t1.0\n{odd}\t\t0.3333333333333333\n'
      'c"\t0.5\t1.0\n'
  )
  assert [p.name for p in tmp_path.iterdir()] == ['per_query.tsv']
  got = read_per_query(path)
  assert got.queries == ['a', odd, 'c"']
  assert list(got.values) == list(values)
  for metric, column in values.items():
    np.testing.assert_array_equal(got.values[metric], column)
  assert got.column('P@1') == {'a': 1.0, 'c"': 0.5}
  assert got.means()['P@1'] == 0.75


@pytest.mark.parametrize('rows', ['a\t1.0\nb\n', 'a\tx\n', ''])
def test_a_damaged_file_is_named(tmp_path, rows):
  path = tmp_path / 'per_query.tsv'
  path.write_text(f'query_id\tMRR\n{rows}')
  with pytest.raises(UserError, match='per_query.tsv is damaged. Run `dualen'):
    read_per_query(path)


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
