"""Layouts through whole runs of the program: chosen, changed on resume."""

import numpy as np
from orbax import checkpoint as ocp
import pytest
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError

STEPS = 4


def run(tmp_path, name, *flags, steps=STEPS):
  """Parameters after `steps` steps, by path, read by Orbax."""
  folder = tmp_path / name
  train.main([
      *tiny_run.flags(tmp_path, '--gin.NUM_NEGATIVES=2', *flags),
      '--gin.SCHEDULE=@optax.constant_schedule()',
      '--gin.optax.constant_schedule.value=1e-3',
      f'--gin.STEPS={steps}',
      '--gin.CHECKPOINT_EVERY=2',
      f'--model_dir={folder}',
  ])
  path = folder / 'checkpoints' / str(steps) / 'params'
  tree = ocp.PyTreeCheckpointer().restore(path)
  flat = ocp.utils.to_flat_dict(tree)
  return {'/'.join(path): np.asarray(x) for path, x in flat.items()}


@pytest.fixture(scope='module')
def padded(tmp_path_factory):
  return run(
      tmp_path_factory.mktemp('padded'), 'm', '--gin.LAYOUT=@data.Padded()'
  )


def assert_close(params, wanted):
  assert params.keys() == wanted.keys()
  for path, value in wanted.items():
    error = np.abs(params[path] - value).max() / np.abs(value).max()
    assert error < 1e-4, f'{path}: {error:.1e}'


@pytest.mark.slow
def test_a_run_may_go_on_in_another_layout(tmp_path, padded, capfd):
  """Dropout, which every run has, is that of the padded run, too."""
  steps = [
      (2, '--gin.LAYOUT=@data.Padded()'),
      (3, '--gin.LAYOUT=@data.Packed()'),
      (
          4,
          '--gin.LAYOUT=@data.Grouped()',
          '--gin.data.Grouped.groups=2',
          '--gin.MICRO_BATCH_SIZE=8',
      ),
  ]
  for count, *flags in steps:
    # More steps are a change of what is trained, which must be allowed.
    allow = ['--allow_config_change'] if count > 2 else []
    params = run(tmp_path, 'm', *flags, *allow, steps=count)
    said = capfd.readouterr().err
    assert ('Resuming from step' in said) == (count > 2)
    name = flags[0].partition('@data.')[2].removesuffix('()')
    assert f'Layout: {name}, rows x tokens' in said
  assert_close(params, padded)
  # Another layout alone needs no leave; another seed does.
  packed = '--gin.LAYOUT=@data.Packed()'
  run(tmp_path, 'm', packed, '--gin.data.Packed.sample=9')
  with pytest.raises(UserError, match='of another config. SEED: 0 -> 1. Use'):
    run(tmp_path, 'm', '--gin.LAYOUT=@data.Padded()', '--gin.SEED=1')
