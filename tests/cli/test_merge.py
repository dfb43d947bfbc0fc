"""`dualenc convert --merge`: the mean of models, and of steps of one."""

import json

import interrupted
import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.cli import convert, evaluate, train
from dualenc_jax.utils.errors import UserError


def assert_mean(found, arrays):
  assert found.keys() == arrays[0].keys()
  for name, array in found.items():
    expected = np.mean([a[name].astype(np.float64) for a in arrays], axis=0)
    np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
def test_models_and_steps_are_merged_and_evaluated(tmp_path):
  two, one = tiny_evaluation.shared_model(), tmp_path / 'one'
  train.main([
      *tiny_run.flags(tmp_path), '--gin.SEED=1', '--gin.CHECKPOINT_EVERY=1',
      f'--model_dir={one}',
  ])
  merged, files = tmp_path / 'merged', tiny_run.pairs_flags(tmp_path)[:4]
  convert.main([
      f'--merge={one},{two},{two},{two}', '--to=model_dir',
      f'--output_dir={merged}',
  ])
  # By Orbax alone.
  a, b = (interrupted.item(run, 2, 'params') for run in (one, two))
  found = interrupted.item(merged, interrupted.newest(merged), 'params')
  assert_mean(found, [a, b, b, b])
  assert not np.array_equal(a['projection/kernel'], b['projection/kernel'])
  evaluate.main([
      f'--model_dir={merged}', *files, '--split=test', '--no_baselines'
  ])
  metrics = merged / 'evaluation' / 'pairs-test' / 'metrics.json'
  assert json.loads(metrics.read_text())['queries'] > 20
  mean = tmp_path / 'mean'
  convert.main(
      [str(one), '--merge=1,2', '--to=model_dir', f'--output_dir={mean}']
  )
  first = interrupted.item(one, 1, 'params')
  found = interrupted.item(mean, interrupted.newest(mean), 'params')
  assert_mean(found, [first, a])


@pytest.mark.parametrize(
    'flags, message',
    [
        ([], 'dualenc convert SOURCE, or --merge=A,B'),
        (['m', '--merge=a,b'], '=a,b: expected two or more'),
        (['m', '--merge=1,2', '--step=1'], 'without --step'),
        (['--merge=a,b', '--to=faiss'], '--merge takes models'),
    ],
)
def test_bad_flags(tmp_path, monkeypatch, flags, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=message):
    convert.main(['--to=model_dir', '--output_dir=out', *flags])
