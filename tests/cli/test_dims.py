"""Embeddings cut short: trained for it, and `--dim` of the commands."""

import pathlib
import re
import shutil

import numpy as np
import pytest
import tiny_evaluation
import tiny_run
import tiny_towers
import tiny_weights

from dualenc_jax import Retriever
from dualenc_jax.checkpoints import checkpoint_reader, formats
from dualenc_jax.cli import convert, main as cli, saved_run
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import UserError

QUERIES = ['find map hash', 'find xml', 'zone of a year']
WARNING = 'is cut to {} components, and was trained for 128, 64, 32, 16'


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir as of a run for four dims."""
  return tiny_evaluation.write_random(
      tmp_path_factory.mktemp('dims') / 'model', trained_dims=(128, 64, 32, 16)
  )


def run(command, *args):
  assert cli.main([command, *map(str, args)]) == 0


def refused(capfd, message, command, *args):
  capfd.readouterr()
  assert cli.main([command, *map(str, args)]) == 2
  assert message in capfd.readouterr().err


def first(vectors, dim):
  """The first components of length one, in float64."""
  cut = vectors[:, :dim].astype(np.float64)
  return cut / np.linalg.norm(cut, axis=1, keepdims=True)


def said(capfd):
  found = capfd.readouterr()
  return found.out + found.err


def projection(folder):
  return formats.read(folder).tensors['projection/kernel'].read()


def test_encode_and_search(model, capfd):
  run('encode', f'--model_dir={model}')
  whole = Index.open(model / 'index')
  run('encode', f'--model_dir={model}', '--dim=32')
  assert 'is cut to' not in said(capfd)
  cut = Index.open(model / 'dim-32' / 'index')
  assert cut.header.dim == 32 and cut.ids[:] == whole.ids[:]
  np.testing.assert_allclose(
      cut.embeddings[:], first(whole.embeddings[:], 32), rtol=0, atol=1e-6
  )
  trained_for = saved_run.load(str(model), dim=32).provenance['trained_dims']
  assert trained_for == [32, 16]
  before = (model / 'index' / 'header.json').read_bytes()
  run('search', f'--model_dir={model}', '--dim=32', '--k=3', *QUERIES)
  out = capfd.readouterr()
  # Neither index was made again.
  assert 'Encoding' not in out.err
  assert before == (model / 'index' / 'header.json').read_bytes()
  queries = Retriever.from_dir(model).encode_queries(QUERIES)
  scores = first(queries, 32) @ first(whole.embeddings[:], 32).T
  best = -np.sort(-scores)[:, :3].ravel()
  lines = out.out.splitlines()
  shown = [float(x.split()[0]) for x in lines if re.match('  [0-9]', x)]
  np.testing.assert_allclose(shown, best, atol=6e-4)
  refused(capfd, 'dim is 128, expected 32', 'search', f'--model_dir={model}',
          '--dim=32', f'--index_dir={model / "index"}', 'xml')


def test_a_cut_model_is_evaluated_as_truncated_embeddings_are(model, capfd):
  quiet, codecs = '--no_baselines', '--codecs=truncate:12,truncate:20'
  run('evaluate', f'--model_dir={model}', quiet, codecs)
  assert WARNING.format(12) in said(capfd)
  run('evaluate', f'--model_dir={model}', '--dim=20', quiet)
  assert WARNING.format(20) in said(capfd)
  home = model / 'dim-20'
  facts = tiny_evaluation.result_of(home / 'evaluation' / 'pairs-test')
  assert (facts['dim'], facts['trained_dims']) == (20, [16])
  assert (home / 'evaluation' / 'tables.md').exists()
  folder = model / 'evaluation' / 'pairs-test'
  whole, cut = (
      tiny_evaluation.result_of(place)['metrics']['MRR']
      for place in (folder, folder / 'codecs' / 'truncate-20')
  )
  assert whole != cut == pytest.approx(facts['metrics']['MRR'], rel=1e-5)


def test_a_retriever_of_any_form(model, tmp_path):
  whole = Retriever.from_dir(model).encode_passages(QUERIES)
  t5x = tmp_path / 't5x'
  run('convert', model, '--to=t5x', f'--output_dir={t5x}', '--no-verify')
  for source in (model, t5x):
    retriever = Retriever.from_dir(source, dim=16)
    assert retriever.dim == 16
    np.testing.assert_allclose(
        retriever.encode_passages(QUERIES), first(whole, 16), atol=1e-6
    )
  retriever.save(tmp_path / 'saved')
  assert Retriever.from_dir(tmp_path / 'saved', dim=16).dim == 16
  with pytest.raises(UserError, match='compiled for embeddings of 16 comp'):
    Retriever.from_dir(tmp_path / 'saved', dim=8)
  # Its weights are there to be cut.
  eight = tmp_path / 'eight'
  run('convert', tmp_path / 'saved', '--to=hf', '--dim=8',
      f'--output_dir={eight}', '--no-verify')
  np.testing.assert_array_equal(projection(eight), projection(model)[:, :8])


def test_a_converted_model_is_the_cut_one(model, tmp_path, capfd):
  out = tmp_path / 'out'
  run('convert', model, '--to=model_dir', '--dim=32', f'--output_dir={out}')
  assert 'embeddings of 32' in said(capfd)
  cut = Retriever.from_dir(out)
  whole = Retriever.from_dir(model).encode_queries(QUERIES)
  assert cut.dim == 32
  np.testing.assert_allclose(
      cut.encode_queries(QUERIES), first(whole, 32), atol=1e-6
  )
  # It opens indexes of the model with this dim.
  towers = Retriever.from_dir(model, dim=32).towers
  assert cut.towers.tower_digest('passage') == towers.tower_digest('passage')
  # As are other forms, though not all have a place for dims.
  for form in ('model_dir', 'jax_export', 't5x', 'hf'):
    other = tmp_path / form
    run('convert', model, f'--to={form}', '--dim=32', f'--output_dir={other}',
        '--no-verify')
    known = () if form in ('t5x', 'hf') else (32, 16)
    assert formats.read(other).trained_dims == known
    np.testing.assert_array_equal(projection(other), projection(model)[:, :32])


def test_a_query_tower_alone_is_cut_with_its_model(model, tmp_path, capfd):
  alone = tmp_path / 'alone'
  run('convert', model, '--to=jax_export', '--tower=query', '--dim=32',
      f'--output_dir={alone}', '--no-verify')
  index = model / 'dim-32' / 'index'
  if not index.exists():
    run('encode', f'--model_dir={model}', '--dim=32')
  scores, _ = Retriever.from_dir(alone, index=index).search(QUERIES, 5)
  cut = Retriever.from_dir(model, index=index, dim=32)
  expected, _ = cut.search(QUERIES, 5)
  np.testing.assert_allclose(scores, expected, atol=1e-6)
  refused(capfd, 'only a query tower, which needs', 'convert', alone,
          '--to=jax_export', '--dim=16', f'--output_dir={tmp_path / "x"}')


def test_towers_with_projections_of_their_own(tmp_path, caplog):
  folder = tmp_path / 'ade'
  weights = tiny_weights.random(tiny_towers.model(apart=True))
  convert.write_model_dir(weights, folder)
  whole, cut = Retriever.from_dir(folder), Retriever.from_dir(folder, dim=9)
  found = saved_run.load(str(folder), dim=9)
  assert 'trained for all 24 alone' in caplog.text
  assert found.provenance['dim'] == 9
  for encode in ('encode_queries', 'encode_passages'):
    vectors = first(getattr(whole, encode)(QUERIES), 9)
    own = getattr(cut, encode)(QUERIES)
    np.testing.assert_allclose(own, vectors, atol=1e-6)


@pytest.mark.parametrize('dim', [0, 129])
def test_a_dim_that_there_is_not(model, dim):
  with pytest.raises(UserError, match=f'The dim is {dim}; expected 1 to'):
    Retriever.from_dir(model, dim=dim)


@pytest.mark.slow
def test_dims_by_flags(tmp_path, capfd):
  flags = tiny_run.flags(
      tmp_path,
      '--gin_file=losses/matryoshka.gin',
      '--gin.MATRYOSHKA_DIMS=(128, 16)',
      # The wrapper takes whatever loss is given, before it or after.
      '--gin_file=losses/samtone.gin',
  )
  folder = tmp_path / 'model'
  run('train', *flags, f'--model_dir={folder}')
  assert checkpoint_reader.open_checkpoint(folder, 2).trained_dims == (128, 16)
  logged = {name for line in tiny_run.logged(folder) for name in line}
  assert {'128/loss', '16/loss'} <= logged
  shutil.rmtree(folder)
  refused(capfd, 'Expected 128 itself and smaller ones', 'train', *flags,
          '--gin.MATRYOSHKA_DIMS=(64, 16)', f'--model_dir={folder}')
