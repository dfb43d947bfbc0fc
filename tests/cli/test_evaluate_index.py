"""The same files from any mesh and index; what no index may be."""

import os
import pathlib
import subprocess
import sys
import types

import brute_force
import jax
import numpy as np
import pytest
import tiny_beir
import tiny_evaluation
from tiny_evaluation import link_model, result_of, run, run_of, tree

from dualenc_jax.cli import encode
from dualenc_jax.retrieval.index import (
  build_for_model,
  header as header_lib,
  Index,
)
from dualenc_jax.utils.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
SET = tiny_beir.make_large()


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir after two steps; the data is beside it."""
  folder = tmp_path_factory.mktemp('run')
  SET.write(folder / 'data' / 'beir' / 'scifact')
  tiny_beir.make(1).write(folder / 'data' / 'beir' / 'nfcorpus')
  return link_model(folder)


@pytest.fixture(scope='module')
def whole(model) -> pathlib.Path:
  """The result folder of a plain evaluation."""
  return run(model, model.parent / 'whole')


def make_index(model, folder, *more):
  """What a user would do to have the corpus encoded ahead."""
  encode.main([
      f'--model_dir={model}', '--gin_file=tasks/beir.gin',
      '--gin.BEIR_SET=scifact',
      f'--gin.DATA_ROOT={model.parent / "data"}', f'--index_dir={folder}',
      *more,
  ])
  return folder


@pytest.mark.nightly
def test_on_another_mesh_the_same_bytes(model, whole, tmp_path):
  done = subprocess.run(
      [sys.executable, '-m', 'dualenc_jax', 'evaluate']
      + tiny_evaluation.flags(model, tmp_path),
      env={
          **os.environ, 'JAX_NUM_CPU_DEVICES': '8', 'PYTHONPATH': str(ROOT)
      },
      capture_output=True, text=True, timeout=120,
  )
  assert done.returncode == 0, done.stderr
  assert len(jax.devices()) == 1
  assert tree(tmp_path) == tree(whole)


def test_with_an_index_of_several_shards_the_same_files(
    model, tmp_path, monkeypatch
):
  monkeypatch.setattr(header_lib, 'SHARD_SIZE', 50)
  index = f'--index_dir={tmp_path / "index"}'
  expected = tree(run(model, tmp_path / 'memory'))
  assert tree(run(model, tmp_path / 'disk', index)) == expected
  header = Index.open(tmp_path / 'index').header
  assert (header.shard_size, header.dtype) == (50, 'float32')
  # The second time it is read, even by a program of other habits.
  monkeypatch.undo()
  before = {
      path: path.stat().st_mtime_ns
      for path in (tmp_path / 'index').rglob('*.npy')
  }
  assert tree(run(model, tmp_path / 'disk', index)) == expected
  assert before == {path: path.stat().st_mtime_ns for path in before}


def test_an_index_that_encode_left_is_used_as_it_is(model, whole, tmp_path):
  index = make_index(model, tmp_path / 'index', '--codec=fp16')
  output = run(model, tmp_path / 'results', f'--index_dir={index}')
  assert result_of(output)['embedding_dtype'] == 'float16'
  half = Index.open(index).embeddings[:]
  assert half.dtype == np.float16
  queries, _ = brute_force.towers(model, {'d': 'x'}, SET.queries)
  scores = queries @ half.astype(np.float64).T
  for row, hits in zip(scores, run_of(output).values(), strict=True):
    np.testing.assert_allclose(
        [score for _, score in hits], np.sort(row)[::-1], atol=2e-6
    )
  assert tree(output)['run.trec'] != tree(whole)['run.trec']


def test_an_index_of_something_else_is_refused_by_field(model, tmp_path):
  index = make_index(model, tmp_path / 'index')
  flag = f'--index_dir={index}'
  with pytest.raises(UserError) as error:
    run(model, tmp_path / 'results', flag, tasks='beir/nfcorpus')
  for part in (
      str(index), 'passages is 130, expected 12', 'source is ',
      "'dataset': 'scifact'", 'Give another --index_dir',
  ):
    assert part in str(error.value), part
  # Half of an index of something else is none of ours, either.
  index.rename(tmp_path / 'index.partial')
  with pytest.raises(UserError, match='passages is 130, expected 12'):
    run(model, tmp_path / 'results', flag, tasks='beir/nfcorpus')
  assert not (tmp_path / 'results' / 'metrics.json').exists()


def test_a_corpus_that_does_not_fit_the_memory(
    model, whole, tmp_path, monkeypatch
):
  needed = 4 * 130 * 128
  # The model itself has room: only who looks at the vectors is told of less.
  small = types.SimpleNamespace(machine_memory=lambda: int(needed / 0.6) - 2)
  monkeypatch.setattr(build_for_model, 'machine', small)
  with pytest.raises(UserError, match='130 passages need .*--index_dir'):
    run(model, tmp_path / 'results')
  output = run(model, tmp_path / 'results', f'--index_dir={tmp_path / "i"}')
  assert tree(output) == tree(whole)
