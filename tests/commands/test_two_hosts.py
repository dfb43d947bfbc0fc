"""`dualenc train --multihost` as two processes equals one process.

They find each other in all the ways there are: by flags, where nothing is said.
With JPQ it is in test_taught_pq_runs.py; `encode` and `generate` in theirs.
"""

import subprocess

import interrupted
import numpy as np
import pytest
import tiny_run
import two_hosts

from dualenc_jax.commands import train
from dualenc_jax.interop import model_dirs
from dualenc_jax.tensor_files import zarr_files

pytestmark = pytest.mark.slow


def flags(folder, model, *more):
  return [
      *tiny_run.flags(folder),
      '--gin.STEPS=6',
      '--gin.EVAL_EVERY=2',
      '--gin.CHECKPOINT_EVERY=2',
      # The schedule is that of the whole run.
      '--gin.optax.linear_schedule.transition_steps=6',
      *more,
      f'--model_dir={folder / model}',
  ]


def test_train_evaluate_save_and_resume(tmp_path):
  ring = '--gin.NUM_NEGATIVES=1', '--gin.LOSS_IMPLEMENTATION=ring'
  train.main(flags(tmp_path, 'one', *ring))
  # Eight devices on the data axis; then four on a model axis over both hosts.
  two_hosts.run(
      'train',
      *flags(tmp_path, 'two', *ring, '--gin.STEPS=3'),
      environs=two_hosts.by_slurm(),
  )
  with two_hosts.by_metadata(tmp_path) as environs:
    two_hosts.run(
        'train', *flags(tmp_path, 'two', *ring, '--gin.MODEL_PARALLEL=4'),
        '--allow_config_change', devices=2, environs=environs,
    )
  one, two = map(tiny_run.logged, (tmp_path / 'one', tmp_path / 'two'))
  at = [(x['step'], x['group']) for x in one]
  assert at.count((4, 'validation')) == 1 and len(at) == 6 + 4
  # The first two hosts have evaluated after their last step, too.
  two = [x for x in two if (x['step'], x['group']) in at]
  assert [(x['step'], x['group']) for x in two] == at
  assert_numbers_equal(one, two)
  assert_saved_equal(tmp_path, 6, 'params', 'optimizer')


def test_each_leg_on_other_devices_and_hosts(tmp_path):
  """Each crosses the end of an epoch, which leaves 16 of 96 pairs over."""
  given = [
      '--gin.BATCH_SIZE=40', '--gin.STEPS=11', '--gin.EVAL_EVERY=0',
      '--gin.optax.linear_schedule.transition_steps=11',
  ]
  train.main(flags(tmp_path, 'one', *given))
  for end, hosts, devices in (
      (3, 1, 8), (5, 1, 4), (7, 1, 1), (9, 2, 4), (11, 1, 8)
  ):
    leg = flags(tmp_path, 'two', *given, f'--gin.STEPS={end}')
    leg.append('--allow_config_change')
    if hosts == 2:
      said = two_hosts.run('train', *leg, devices=devices)[0]
    else:
      run = interrupted.start(
          'train', *leg, devices=devices, stderr=subprocess.PIPE
      )
      said = run.communicate()[1]
      assert run.returncode == 0, said
    assert end == 3 or f'Resuming from step {end - 2}' in said
  runs = tmp_path / 'one', tmp_path / 'two'
  assert_numbers_equal(*map(tiny_run.logged, runs))
  assert_saved_equal(tmp_path, 11, 'params', 'optimizer')


def assert_numbers_equal(one, two):
  assert len(one) == len(two)
  for a, b in zip(one, two):
    assert a.keys() == b.keys()
    for name in a.keys() - {'group', 'examples_per_second'}:
      np.testing.assert_allclose(
          b[name], a[name], rtol=1e-4, atol=1e-5, err_msg=name
      )


def assert_saved_equal(folder, step, *items):
  for item in items:
    a, b = (
        zarr_files.read_tree(folder / run / 'checkpoints' / str(step) / item)
        for run in ('one', 'two')
    )
    assert a.keys() == b.keys() and a
    for name in a:
      np.testing.assert_allclose(
          b[name].read(), a[name].read(), rtol=1e-4, atol=1e-5, err_msg=name
      )


def test_align_until_and_keep_the_best(tmp_path):
  deep = ['--gin.models.T5Encoder.num_layers=4', '--gin.STEPS=2']
  teacher = tmp_path / 'teacher'
  train.main([*tiny_run.flags(tmp_path, *deep), f'--model_dir={teacher}'])
  given = [
      *deep, '--gin_file=losses/alignment.gin',
      f'--gin.INITIAL_CHECKPOINT_PATH={teacher}',
      f'--gin.STATES_DIR={tmp_path / "states"}', '--gin.STEPS=40',
      '--gin.KEEP_BEST=nDCG@10', '--gin.UNTIL=@run.UntilAligned()',
      '--gin.run.UntilAligned.share=0.0', '--gin.run.UntilAligned.patience=1',
      '--gin.TEMPERATURE=0.05',
  ]
  two_hosts.run(
      'train', *flags(tmp_path, 'two', *given), environs=two_hosts.by_gke()
  )
  # What the two have encoded and kept is what one would encode.
  train.main(flags(tmp_path, 'one', *given, '--gin.STATES_DIR=None'))
  one, two = map(tiny_run.logged, (tmp_path / 'one', tmp_path / 'two'))
  assert {x['group'] for x in one} == {'train', 'validation', 'alignment'}
  end = one[-1]['step']
  assert 2 <= end < 40, 'patience was to end it'
  assert_numbers_equal(one, two)
  for find in (model_dirs.best_step, model_dirs.steps):
    assert find(tmp_path / 'one') == find(tmp_path / 'two')
  assert_saved_equal(tmp_path, end, 'params', 'optimizer')


def test_a_negative_cache(tmp_path):
  given = [
      '--gin_file=losses/negative_cache.gin', '--gin.CACHE_SIZE=64',
      '--gin.TEMPERATURE=0.1', '--gin.REFRESH=0.1', '--gin.TOP_K=16',
      '--gin.STEPS=4',
  ]
  run = 'train', *tiny_run.flags(tmp_path, *given)
  train.main([*run[1:], f'--model_dir={tmp_path / "one"}'])
  # How a host finds the other is its own affair.
  _, environ = two_hosts.by_jax()
  address = environ['JAX_COORDINATOR_ADDRESS']
  where = f'--coordinator_address={address}', '--num_processes=2'
  two_hosts.run(
      *run, f'--model_dir={tmp_path / "two"}',
      environs=({}, environ), each=([*where, '--process_id=0'], []),
  )
  runs = tmp_path / 'one', tmp_path / 'two'
  assert_numbers_equal(*map(tiny_run.logged, runs))
  assert_saved_equal(tmp_path, 4, 'params', 'optimizer', 'memory')
