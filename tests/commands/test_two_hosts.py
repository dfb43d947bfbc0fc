"""`dualenc train --multihost` as two processes equals one process."""

import json

import numpy as np
import pytest
import tiny_run
import two_hosts

from dualenc_jax.commands import train
from dualenc_jax.tensor_files import zarr_files

pytestmark = pytest.mark.slow


def flags(folder, model, *more):
  return [
      *tiny_run.flags(folder),
      '--gin.STEPS=6',
      '--gin.NUM_NEGATIVES=1',
      '--gin.LOSS_IMPLEMENTATION=ring',
      '--gin.EVAL_EVERY=2',
      '--gin.CHECKPOINT_EVERY=2',
      # The schedule is that of the whole run.
      '--gin.optax.linear_schedule.transition_steps=6',
      *more,
      f'--model_dir={folder / model}',
  ]


def lines(model_dir):
  return [json.loads(line) for line in (model_dir / 'metrics.jsonl').open()]


def test_train_evaluate_save_and_resume(tmp_path):
  train.main(flags(tmp_path, 'one'))
  # Eight devices on the data axis; then four on a model axis over both hosts.
  two_hosts.run('train', *flags(tmp_path, 'two', '--gin.STEPS=3'))
  two_hosts.run(
      'train',
      *flags(tmp_path, 'two', '--gin.MODEL_PARALLEL=4'),
      '--allow_config_change',
      devices=2,
  )
  one, two = lines(tmp_path / 'one'), lines(tmp_path / 'two')
  at = [(x['step'], x['group']) for x in one]
  assert at.count((4, 'validation')) == 1 and len(at) == 6 + 4
  # The first two hosts have evaluated after their last step, too.
  two = [x for x in two if (x['step'], x['group']) in at]
  assert [(x['step'], x['group']) for x in two] == at
  for a, b in zip(one, two):
    assert a.keys() == b.keys()
    for name in a.keys() - {'group', 'examples_per_second'}:
      np.testing.assert_allclose(
          b[name], a[name], rtol=1e-4, atol=1e-5, err_msg=name
      )
  for item in ('params', 'optimizer'):
    a, b = (
        zarr_files.read_tree(tmp_path / run / 'checkpoints' / '6' / item)
        for run in ('one', 'two')
    )
    assert a.keys() == b.keys() and len(a) > 20
    for name in a:
      np.testing.assert_allclose(
          b[name].read(), a[name].read(), rtol=1e-4, atol=1e-5, err_msg=name
      )
