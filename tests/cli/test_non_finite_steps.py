"""A loss that is not finite, which is never saved."""

import interrupted
import pytest
import tiny_run

from dualenc_jax.cli import train
from dualenc_jax.utils.errors import UserError

MODULE = """
import dataclasses
import jax.numpy as jnp
from dualenc_jax import losses

@dataclasses.dataclass(frozen=True)
class Sick(losses.InBatchSoftmax):

  def __call__(self, params, batch, similarity):
    value, metrics = super().__call__(params, batch, similarity)
    if batch.step is not None:
      # The second, counted from 1.
      value = value * jnp.where(batch.step == 1, jnp.nan, 1.0)
    return value, metrics
"""
GIN = """
from __gin__ import dynamic_registration
import sick_losses

LOSS = @sick_losses.Sick()
"""


def test_a_step_that_is_not_finite_ends_the_run_and_is_not_saved(
    tmp_path, monkeypatch
):
  (tmp_path / 'sick_losses.py').write_text(MODULE)
  (tmp_path / 'sick.gin').write_text(GIN)
  monkeypatch.syspath_prepend(tmp_path)
  model = tmp_path / 'model'
  with pytest.raises(UserError, match=r'Step 2: the .* not finite'):
    train.main([
        *tiny_run.flags(tmp_path, f'--gin_file={tmp_path / "sick.gin"}'),
        '--gin.STEPS=6', '--gin.CHECKPOINT_EVERY=1', f'--model_dir={model}',
    ])
  assert interrupted.steps(model) == [1]
