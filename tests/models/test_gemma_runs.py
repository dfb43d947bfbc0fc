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


def test_no_other_library_gets_it_by_mistake(model_dir, tmp_path):
  with pytest.raises(UserError, match='is of the Gemma family'):
    convert.main(
        [str(model_dir), '--to=hf', f'--output_dir={tmp_path / "hf"}']
    )
