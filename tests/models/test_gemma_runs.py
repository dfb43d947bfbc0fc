"""Runs of the Gemma encoder: trained, evaluated, opened and saved."""

import numpy as np
import pytest
import tiny_run

import dualenc_jax
from dualenc_jax.cli import convert, evaluate, train
from dualenc_jax.utils.errors import UserError


@pytest.fixture(scope='module')
def model_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('gemma')
  train.main([
      *tiny_run.gemma_flags(folder, '--gin.LOSS=@losses.SamToNe()'),
      '--gin_file=architectures/ade_spl.gin', f'--model_dir={folder / "model"}',
  ])
  return folder / 'model'


@pytest.mark.nightly
def test_a_run_evaluates_and_its_saved_retriever_agrees(model_dir, tmp_path):
  evaluate.main([f'--model_dir={model_dir}', '--no_baselines'])
  assert (model_dir / 'evaluation/pairs-test/metrics.json').exists()
  retriever = dualenc_jax.Retriever.from_dir(model_dir)
  texts = ['array byte cache', 'zone year', 'find key list map node']
  retriever.index(texts)
  retriever.save(tmp_path / 'saved')
  saved = dualenc_jax.Retriever.from_dir(tmp_path / 'saved')
  for method in 'encode_queries', 'encode_passages':
    one, other = (getattr(r, method)(texts) for r in (retriever, saved))
    np.testing.assert_allclose(one, other, atol=1e-5)
  assert retriever.search(['find zone'], 2).ids.tolist() == saved.search(
      ['find zone'], 2
  ).ids.tolist()


@pytest.mark.nightly
def test_every_form_there_and_back(model_dir, tmp_path):
  """`convert` compares tensors, settings and the vectors of each library."""
  def converted(source, form):
    out = tmp_path / form
    convert.main([str(source), f'--to={form}', f'--output_dir={out}'])
    return out

  for form in 'jax_export', 'sentence_transformers':
    folder = converted(model_dir, form)
  texts = ['array byte cache', 'zone year']
  again = converted(folder, 'model_dir')
  one, other = (
      dualenc_jax.Retriever.from_dir(path).encode_passages(texts)
      for path in (model_dir, again)
  )
  np.testing.assert_allclose(one, other, atol=1e-5)
  with pytest.raises(UserError, match='has two towers that differ'):
    converted(model_dir, 'hf')
  with pytest.raises(UserError, match='of the Gemma family: give --to=hf'):
    converted(model_dir, 't5x')
