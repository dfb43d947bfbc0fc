"""A loss that is not finite: left out so often, and never saved."""

import interrupted
from interrupted import assert_bit_equal, saved
import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError
from dualenc_jax.models import dual_encoder

pytestmark = pytest.mark.slow
MODULE = """
import dataclasses
import jax.numpy as jnp
from dualenc_jax import losses

@dataclasses.dataclass(frozen=True)
class Sick(losses.InBatchSoftmax):
  at: tuple = ()

  def __call__(self, params, batch, similarity):
    value, metrics = super().__call__(params, batch, similarity)
    if batch.step is not None:
      for step in self.at:
        value = value * jnp.where(batch.step == step, jnp.nan, 1.0)
    return value, metrics
"""
GIN = """
from __gin__ import dynamic_registration
import sick_losses

LOSS = @sick_losses.Sick()
"""


@pytest.fixture
def flags(tmp_path, monkeypatch):
  (tmp_path / 'sick_losses.py').write_text(MODULE)
  (tmp_path / 'sick.gin').write_text(GIN)
  monkeypatch.syspath_prepend(tmp_path)

  def make(at, skip):
    return tiny_run.flags(
        tmp_path, f'--gin_file={tmp_path / "sick.gin"}',
        f'--gin.sick_losses.Sick.at={at}', f'--gin.SKIP_NON_FINITE={skip}',
        '--gin.STEPS=5', '--gin.CHECKPOINT_EVERY=1',
        f'--model_dir={tmp_path / "model"}',
    )

  return make


def assert_finite(folder, step):
  for name, array in saved(folder, step).items():
    assert np.isfinite(array).all(), name


def test_a_step_is_left_out_counted_and_told(flags, tmp_path, capfd):
  train.main(flags((3,), 1))
  said = capfd.readouterr().err
  assert said.count('The step is left out') == 1
  assert 'WARNING: step 4: the ' in said
  assert 'number 1 of at most 1 in a row, 1 in all' in said
  model = tmp_path / 'model'
  skipped = [line['skipped'] for line in tiny_run.logged(model)]
  assert skipped == [0, 0, 0, 1, 0]
  assert interrupted.steps(model) == [3, 4, 5]
  three, four, five = (saved(model, step) for step in (3, 4, 5))
  assert_bit_equal(three, four)
  assert any((four[name] != five[name]).any() for name in four)
  assert_finite(model, 5)


def test_one_more_stops_it_and_more_patience_goes_on(flags, tmp_path):
  model = tmp_path / 'model'
  with pytest.raises(UserError, match='Step 4: .* one more in a row than'):
    train.main(flags((2, 3), 1))
  assert interrupted.steps(model) == [1, 2, 3]
  train.main(flags((2, 3), 2))
  assert interrupted.steps(model) == [3, 4, 5]
  assert_finite(model, 5)


def test_without_it_nothing_of_the_step_is_saved(flags, tmp_path):
  with pytest.raises(UserError, match=r'Step 3: the .* not finite\. Lower'):
    train.main(flags((2,), 0))
  assert interrupted.steps(tmp_path / 'model') == [1, 2]
  assert_finite(tmp_path / 'model', 2)


def test_embeddings_that_are_not_of_norm_one_stop_the_run(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(dual_encoder, 'l2_normalize', lambda x: 1.5 * x)
  flags = tiny_run.flags(tmp_path, f'--gin.MODEL_DIR={tmp_path / "model"}')
  with pytest.raises(UserError, match='Step 1: .*norm of an embedding is off'):
    train.main([*flags, '--gin.losses.Similarity.check_norms=True'])
