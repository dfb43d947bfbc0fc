"""A loss that is not finite: left out so often, and never saved."""

import interrupted
from interrupted import assert_bit_equal, saved
import numpy as np
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
      # Of the steps that are counted from 1 the second, fourth and fifth.
      bad = (batch.step == 1) | (batch.step == 3) | (batch.step == 4)
      value = value * jnp.where(bad, jnp.nan, 1.0)
    return value, metrics
"""
GIN = """
from __gin__ import dynamic_registration
import sick_losses

LOSS = @sick_losses.Sick()
"""


def test_steps_are_left_out_counted_and_told_or_end_the_run(
    tmp_path, monkeypatch, capfd
):
  (tmp_path / 'sick_losses.py').write_text(MODULE)
  (tmp_path / 'sick.gin').write_text(GIN)
  monkeypatch.syspath_prepend(tmp_path)
  model = tmp_path / 'model'

  def run(skip):
    train.main([
        *tiny_run.flags(tmp_path, f'--gin_file={tmp_path / "sick.gin"}'),
        f'--gin.SKIP_NON_FINITE={skip}', '--gin.STEPS=6',
        '--gin.CHECKPOINT_EVERY=1', f'--model_dir={model}',
    ])
    return capfd.readouterr().err

  with pytest.raises(UserError, match=r'Step 2: the .* not finite\. Lower'):
    run(0)
  assert interrupted.steps(model) == [1]
  with pytest.raises(UserError, match='Step 5: .* one more in a row than'):
    run(1)
  assert interrupted.steps(model) == [2, 3, 4]
  one_to_four = [saved(model, step) for step in (2, 3, 4)]
  said = capfd.readouterr().err
  assert said.count('The step is skipped') == 2
  assert 'WARNING: step 4: the ' in said
  assert 'number 1 of at most 1 in a row, 2 in all' in said
  said = run(2)
  assert 'number 2 of at most 2 in a row, 3 in all' in said
  assert interrupted.steps(model) == [4, 5, 6]
  skipped = {x['step']: x['skipped'] for x in tiny_run.logged(model)[1:]}
  assert skipped == {2: 1, 3: 0, 4: 1, 5: 1, 6: 0}
  two, three, four = one_to_four
  assert any((two[name] != three[name]).any() for name in two)
  assert_bit_equal(three, four)
  assert_bit_equal(four, saved(model, 5))
  for name, array in saved(model, 6).items():
    assert np.isfinite(array).all(), name
