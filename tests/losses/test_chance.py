"""The loss of a model that knows nothing."""

from loss_cases import LOSSES, make, make_batch, value_of
import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import train


@pytest.mark.parametrize('num_negatives', [0, 1])
@pytest.mark.parametrize('name', LOSSES)
def test_chance_is_the_loss_where_all_embeddings_are_one(name, num_negatives):
  batch, _ = make_batch(12, num_negatives, dim=4)
  vectors = {
      part: np.full(getattr(batch, part).shape, 0.5, np.float32)
      for part in ('query', 'passage', 'negatives')
      if getattr(batch, part) is not None
  }
  value, _ = value_of(name, batch._replace(**vectors))
  loss, _ = make(name)
  assert loss.chance(12, num_negatives) == pytest.approx(float(value), rel=1e-5)


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
