"""The runs of gin/runs/tpu on the slices of their names, without compiling."""

import dataclasses

import pytest

from dualenc_jax.cli import config, saved_run
from dualenc_jax.forecast import slices
from dualenc_jax.training import memory

RUNS = [f for f in config.shipped_files() if f.startswith('runs/tpu/')]


@pytest.mark.parametrize('run', RUNS)
def test_sizes_divide_the_slice_and_the_state_leaves_room(run):
  on = slices.find_slice(f'v5e:{run.removesuffix(".gin").rpartition("_")[2]}')
  experiment = saved_run.build_experiment(
      [run],
      ['MODEL_DIR = "x"', 'TRAIN_FILE = "x"', 'VOCAB_SIZE = 8064',
       'VOCABULARY = "python_code_8k"'],
      [],
  )
  partitioner = slices.on_slice(experiment.partitioner, on)
  experiment = dataclasses.replace(experiment, partitioner=partitioner)
  micro = experiment.objective.micro_batch_size or experiment.batch_size
  assert experiment.batch_size % micro == 0
  partitioner.check_batch_size('MICRO_BATCH_SIZE', micro)
  # Plans the parameters, so that theirs divide, too. Gradients are as many.
  assert memory.state_bytes(experiment) < on.memory / 4
