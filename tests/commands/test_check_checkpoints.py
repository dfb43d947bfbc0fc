"""A bit that flips in a run's checkpoint: `check`, and training goes on."""

import shutil

from bit_flips import flip_bit
from interrupted import assert_bit_equal, saved
import pytest
import tiny_run

from dualenc_jax.commands import cli

# Orbax leaves the other reads of a damaged checkpoint unfinished.
pytestmark = pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnraisableExceptionWarning'
)


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before(tmp_path, capsys):
  model = tmp_path / 'model'
  flags = tiny_run.flags(tmp_path, '--gin.CHECKPOINT_EVERY=1')
  train = ['train', *flags, f'--model_dir={model}']
  check = ['check', f'--model_dir={model}']
  assert cli.main(train) == 0
  shutil.copytree(model, tmp_path / 'whole')
  assert cli.main(check) == 0
  said = 'tensors of 2 checkpoints are what was saved'
  assert said in capsys.readouterr().out
  name = 'encoder.layers_1.mlp.wo.kernel'
  flip_bit(model / 'checkpoints/2/params', name, (3, 1), 30)
  assert cli.main(check) == 2
  said = f'params: {name.replace(".", "/")} is not what was saved'
  assert said in capsys.readouterr().out
  assert cli.main(train) == 0
  told = capsys.readouterr().err
  assert 'Checkpoint 2' in told and said in told
  assert (model / 'broken_checkpoints/2').is_dir()
  assert cli.main(check) == 0
  assert_bit_equal(saved(model, 2), saved(tmp_path / 'whole', 2))
