"""`dualenc train --multihost` as two processes equals one process.

They find each other by flags, or, where that is said, by SLURM. With JPQ it is
in test_joint_pq_runs.py; `encode` and `generate` in theirs.
"""

import signal
import time

import interrupted
import numpy as np
import pytest
import tiny_evaluation
import tiny_run
import two_hosts

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.cli import train
from dualenc_jax.utils.tensor_files import zarr_files


def flags(folder, model, *more):
  return [
      *tiny_run.flags(folder), '--gin.EVAL_EVERY=2', '--gin.CHECKPOINT_EVERY=2',
      # The schedule is that of the whole run.
      '--gin.optax.linear_schedule.transition_steps=100', *more,
      f'--model_dir={folder / model}',
  ]


@pytest.mark.nightly
def test_each_leg_on_other_hosts_devices_and_layouts(tmp_path, capfd):
  """Nor does the loss's implementation change what is learnt, but rounding."""
  given = [
      '--gin_file=losses/samtone_both.gin', '--gin.NUM_NEGATIVES=1',
      # The end of an epoch leaves 16 of 96 pairs over.
      '--gin.BATCH_SIZE=40', '--gin.EVAL_EVERY=0',
  ]
  two = tmp_path / 'two'

  def leg(*more):
    return flags(tmp_path, 'two', *given, *more, '--allow_config_change')

  # Four devices on the data axis. One host is told to stop, and both save the
  # same step.
  hosts = two_hosts.start(
      'train', *leg('--gin.STEPS=20000', '--gin.LOSS_IMPLEMENTATION=ring'),
      devices=2, environs=two_hosts.by_slurm(),
  )
  try:
    while not interrupted.newest(two):
      assert all(host.poll() is None for host in hosts), hosts[0].communicate()
      time.sleep(0.02)
    hosts[1].send_signal(signal.SIGUSR1)
    said = [host.communicate(timeout=300)[0] for host in hosts]
  finally:
    for host in hosts:
      host.kill()
      host.wait()
  assert [host.returncode for host in hosts] == [75, 75], said
  step = interrupted.newest(two)
  assert f'Stopped at step {step} of 20000: another host was asked' in said[0]
  assert f'Stopped at step {step} of 20000: SIGUSR1' in said[1]

  # Two on a model axis over both hosts.
  said = two_hosts.run(
      'train',
      *leg(
          f'--gin.STEPS={step + 2}', '--gin.MODEL_PARALLEL=2',
          '--gin_file=partitioning/fsdp.gin',
          '--gin.models.T5Encoder.remat=True', '--gin.LAYOUT=@data.Padded()',
      ),
      devices=1,
  )
  assert f'Resuming from step {step}' in said[0]
  assert 'data 1 x model 2' in said[0] and 'Layout: Padded' in said[0]

  end = f'--gin.STEPS={step + 4}'
  train.main(leg(
      end, '--gin.LAYOUT=@data.Packed()',
      '--gin.MICRO_BATCH_SIZE=8',
  ))
  said = capfd.readouterr().err
  assert f'Resuming from step {step + 2}' in said
  assert 'MODEL_PARALLEL: 2 -> 1' in said and 'Layout: Packed' in said
  assert 'Batches of 40 in an epoch: 2; of its 96 examples 16 are' in said

  train.main(flags(tmp_path, 'one', *given, end))
  one, two = map(tiny_run.logged, (tmp_path / 'one', two))
  assert len(one) == step + 4
  assert_numbers_equal(one, two)
  assert_saved_equal(tmp_path, step + 4, 'params', 'optimizer')


def assert_numbers_equal(one, two):
  assert [(x['step'], x['group']) for x in one] == [
      (x['step'], x['group']) for x in two
  ]
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


@pytest.mark.nightly
def test_align_until_and_keep_the_best(tmp_path):
  given = [
      '--gin_file=objectives/alignment.gin', '--gin.QUERY_LAYERS=0',
      f'--gin.INITIAL_CHECKPOINT_PATH={tiny_evaluation.shared_model()}',
      f'--gin.STATES_DIR={tmp_path / "states"}', '--gin.STEPS=40',
      '--gin.KEEP_BEST=nDCG@10', '--gin.UNTIL=@training.UntilAligned()',
      '--gin.training.UntilAligned.share=0.0',
      '--gin.training.UntilAligned.patience=1',
      '--gin.TEMPERATURE=0.05',
  ]
  two_hosts.run('train', *flags(tmp_path, 'two', *given), devices=1)
  # What the two have encoded and kept is what one would encode.
  train.main(flags(tmp_path, 'one', *given, '--gin.STATES_DIR=None'))
  one, two = map(tiny_run.logged, (tmp_path / 'one', tmp_path / 'two'))
  assert {x['group'] for x in one} == {'train', 'validation', 'alignment'}
  end = one[-1]['step']
  assert 2 <= end < 40, 'patience was to end it'
  assert_numbers_equal(one, two)
  for find in (checkpoint_reader.best_step, checkpoint_reader.steps):
    assert find(tmp_path / 'one') == find(tmp_path / 'two')
  assert_saved_equal(tmp_path, end, 'params', 'optimizer')


@pytest.mark.nightly
def test_a_negative_cache(tmp_path):
  run = 'train', *tiny_run.flags(
      tmp_path, '--gin_file=objectives/negative_cache.gin',
      '--gin.CACHE_SIZE=64',
      '--gin.TEMPERATURE=0.1', '--gin.REFRESH=0.1', '--gin.TOP_K=16',
      '--gin.models.T5Encoder.num_layers=0', '--gin.STEPS=3',
  )
  train.main([*run[1:], f'--model_dir={tmp_path / "one"}'])
  two_hosts.run(*run, f'--model_dir={tmp_path / "two"}', devices=1)
  runs = tmp_path / 'one', tmp_path / 'two'
  assert_numbers_equal(*map(tiny_run.logged, runs))
  assert_saved_equal(tmp_path, 3, 'params', 'optimizer', 'memory')
