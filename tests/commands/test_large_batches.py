"""Flags of large batches, through whole runs of the program."""

import re

import numpy as np
from orbax import checkpoint as ocp
import pytest
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError
from dualenc_jax.models import dual_encoder

CHECK = '--gin.losses.Similarity.check_norms=True'


def params_after(tmp_path, name, *flags):
  """Parameters of a run of two steps, by path, read by Orbax."""
  folder = tmp_path / name
  train.main([*tiny_run.flags(tmp_path, *flags), f'--model_dir={folder}'])
  tree = ocp.PyTreeCheckpointer().restore(folder / 'checkpoints/2/params')
  flat = ocp.utils.to_flat_dict(tree)
  return {'/'.join(path): array for path, array in flat.items()}


@pytest.mark.slow
def test_ring_and_micro_batches_train_as_the_plain_step(tmp_path, capfd):
  loss = ('--gin_file=losses/samtone_both.gin', '--gin.NUM_NEGATIVES=1')
  large = ('--gin.LOSS_IMPLEMENTATION=ring', '--gin.MICRO_BATCH_SIZE=8')
  dense = '--gin.LOSS_IMPLEMENTATION=dense'
  plain = params_after(tmp_path, 'plain', *loss, dense)
  # The same run may go on with them; another seed needs leave.
  params_after(tmp_path, 'plain', *loss, *large)
  assert 'MICRO_BATCH_SIZE: None -> 8' in capfd.readouterr().err
  with pytest.raises(UserError, match='of another config. SEED: 0 -> 1. Use'):
    params_after(tmp_path, 'plain', *loss, dense, '--gin.SEED=1')
  large = params_after(tmp_path, 'large', *loss, *large, CHECK)
  assert plain.keys() == large.keys()
  for path, wanted in plain.items():
    scale = np.max(np.abs(wanted))
    error = np.max(np.abs(large[path] - wanted)) / scale
    assert error < 1e-4, f'{path}: {error:.1e}'


@pytest.mark.slow
def test_embeddings_that_are_not_of_norm_one_stop_the_run(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(dual_encoder, 'l2_normalize', lambda x: 1.5 * x)
  flags = tiny_run.flags(tmp_path, f'--gin.MODEL_DIR={tmp_path / "model"}')
  with pytest.raises(UserError, match='norm of an embedding is off 1 by') as e:
    train.main([*flags, CHECK])
  assert re.search(r'Step 1: .*check_norms = False', str(e.value))
