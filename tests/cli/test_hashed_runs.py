"""BPR through `dualenc train` and its gin file."""

import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import check, train
from dualenc_jax.utils.errors import UserError


def flags(folder, model, *more):
  return [
      *tiny_run.flags(folder, '--gin_file=losses/hashed.gin'),
      '--gin.NUM_NEGATIVES=1', *more, f'--model_dir={folder / model}',
  ]


@pytest.mark.nightly
def test_it_trains_and_resumes(tmp_path):
  given = [
      '--gin.HASH_GAMMA=0.5', '--gin.optax.linear_schedule.transition_steps=4'
  ]
  train.main(flags(tmp_path, 'model', *given))
  train.main(flags(
      tmp_path, 'model', *given, '--gin.STEPS=4', '--allow_config_change'
  ))
  rows = tiny_run.logged(tmp_path / 'model')
  # The first step, of which line 1 tells, was taken when none had been.
  np.testing.assert_allclose(
      [row['beta'] for row in rows], np.sqrt([1.0, 1.5, 2.0, 2.5]), 1e-6
  )
  for row in rows:
    parts = row['dense_loss'] + row['candidate_loss']
    assert row['loss'] == pytest.approx(parts, rel=1e-5)
    assert 0 < row['bit_balance'] <= 1 and 0 <= row['saturation'] <= 1


def test_check_says_what_it_is_and_a_wrong_number_names_its_flag(
    tmp_path, capsys
):
  any_loss = [
      '--gin.HASHED_LOSS=@losses.SamToNe()', '--gin.HASH_ALPHA=4.0',
      '--gin.HASH_START=4', '--gin.FALSE_NEGATIVE_MARGIN=0.1',
      '--gin.MICRO_BATCH_SIZE=8',
  ]
  check.main(flags(tmp_path, 'model', *any_loss, '--no_compile'))
  said = capsys.readouterr().out
  assert 'HASHED_LOSS = @losses.SamToNe()' in said
  with pytest.raises(UserError, match=r'HASH_START is 0\.5'):
    check.main(flags(tmp_path, 'model', '--gin.HASH_START=0.5'))
