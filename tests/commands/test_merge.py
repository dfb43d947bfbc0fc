"""`dualenc convert --merge`: the mean of models, used and trained on."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
import tiny_run

from dualenc_jax.commands import convert, evaluate, train
from dualenc_jax.errors import UserError


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """A folder with the model_dirs `one` and `two`, of two checkpoints each."""
  folder = tmp_path_factory.mktemp('models')
  for seed, name in enumerate(('one', 'two')):
    train.main([
        *tiny_run.flags(folder),
        f'--gin.SEED={seed}',
        '--gin.CHECKPOINT_EVERY=1',
        f'--model_dir={folder / name}',
    ])
  return folder


def tensors(source, out, *flags):
  """Those of a checkpoint, by the library of their form."""
  convert.main([str(source), '--to=safetensors', f'--out={out}', *flags])
  return load_file(out / 'weights.safetensors')


@pytest.mark.slow
def test_models_are_merged_evaluated_and_trained_on(models, tmp_path, capsys):
  merged = tmp_path / 'merged'
  convert.main([
      f'--merge={models / "one"},{models / "two"}', '--weights=.25,.75',
      '--to=model_dir', f'--out={merged}',
  ])
  a, b, found = (
      tensors(source, tmp_path / f'{i}')
      for i, source in enumerate((models / 'one', models / 'two', merged))
  )
  for name in a:
    expected = np.average(
        [a[name].astype(np.float64), b[name]], axis=0, weights=[0.25, 0.75]
    )
    np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-7)
  assert not np.array_equal(a['projection/kernel'], b['projection/kernel'])
  files = tiny_run.pairs_flags(tmp_path)[:4]
  evaluate.main([f'--model_dir={merged}', *files, '--split=test'])
  metrics = merged / 'evaluation' / 'pairs-test' / 'metrics.json'
  assert json.loads(metrics.read_text())['queries'] > 20
  train.main([
      f'--gin_file={merged / "config.gin"}', *files,
      f'--gin.INITIAL_CHECKPOINT_PATH={merged}', '--gin.STEPS=1',
      '--gin.BATCH_SIZE=16', '--gin.EVAL_EVERY=0',
      f'--model_dir={tmp_path / "on"}',
  ])
  assert (tmp_path / 'on' / 'checkpoints' / '1').is_dir()


@pytest.mark.slow
def test_steps_of_a_run_are_merged(models, tmp_path):
  one = models / 'one'
  convert.main([
      str(one), '--merge=1,2', '--to=safetensors', f'--out={tmp_path / "mean"}'
  ])
  found = tensors(tmp_path / 'mean', tmp_path / 'plain')
  first, second = (
      tensors(one, tmp_path / f'{step}', f'--step={step}')
      for step in (1, 2)
  )
  for name, array in found.items():
    expected = (first[name].astype(np.float64) + second[name]) / 2
    np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    'flags, message',
    [
        ([], 'dualenc convert SOURCE, or --merge=A,B'),
        (['--merge=a'], '--merge=a: expected two or more'),
        (['m', '--merge=a,b'], 'with m: expected steps of it'),
        (['m', '--merge=1,2', '--step=1'], 'without --step'),
        (['m', '--weights=1,2'], '--weights needs --merge'),
        (['--merge=a,b', '--weights=1'], 'a number above 0 for each of the 2'),
        (['--merge=a,b', '--weights=1,-1'], '=1,-1: expected a number'),
        (['--merge=a,b', '--weights=1,x'], 'is x; expected a number'),
        (['--merge=a,b'], 'a does not exist'),
        (['--merge=a,b', '--to=faiss'], '--merge takes models'),
    ],
)
def test_bad_flags(tmp_path, monkeypatch, flags, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=message):
    convert.main(['--to=model_dir', '--out=out', *flags])
