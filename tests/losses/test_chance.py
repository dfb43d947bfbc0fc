"""The loss of a model that knows nothing."""

import jax
from loss_cases import LOSSES, make, make_batch
import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.losses import evaluate


@pytest.mark.parametrize('num_negatives', [0, 1])
def test_chance_is_the_loss_where_all_embeddings_are_one(num_negatives):
  losses = {name: make(name) for name in LOSSES}
  batch, _ = make_batch(12, num_negatives, dim=4)
  batch = batch.mapped(lambda x: np.full_like(x, 0.5))
  values = jax.jit(
      lambda batch: {n: evaluate(*x, {}, batch)[0] for n, x in losses.items()}
  )(batch)
  for name, (loss, _) in losses.items():
    chance = loss.chance(12, num_negatives)
    assert chance == pytest.approx(float(values[name]), rel=1e-5), name


@pytest.mark.slow
def test_a_loss_above_chance_after_the_warm_up_is_told(tmp_path, capfd):
  flags = tiny_run.flags(tmp_path, '--gin.STEPS=51', '--gin.LEARNING_RATE=1e-6')
  train.main([*flags, f'--model_dir={tmp_path / "high"}'])
  said = capfd.readouterr().err
  # 16 passages for each query, and 16 queries for each passage.
  assert said.count('WARNING: after 50 steps the loss is') == 1
  assert f'above the {2 * np.log(16):.2f} of a model that knows nothing' in said
  flags = tiny_run.flags(tmp_path, '--gin.STEPS=51', '--gin.TEMPERATURE=0.1')
  train.main([*flags, f'--model_dir={tmp_path / "good"}'])
  assert 'of a model that knows nothing' not in capfd.readouterr().err
