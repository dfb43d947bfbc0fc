"""BPR through `dualenc train` and its gin file."""

import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import check, train
from dualenc_jax.errors import UserError


def flags(folder, model, *more):
  return [
      *tiny_run.flags(folder, '--gin_file=losses/hashed.gin'),
      '--gin.NUM_NEGATIVES=1', *more, f'--model_dir={folder / model}',
  ]


@pytest.mark.slow
def test_it_trains_resumes_and_goes_on_from_another_run(tmp_path):
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

  # Another run counts from 0 again, so it is told where this one ended. Any
  # loss may be within it.
  train.main(flags(
      tmp_path, 'more', '--gin.HASH_GAMMA=0.5', '--gin.HASH_START=4',
      f'--gin.INITIAL_CHECKPOINT_PATH={tmp_path / "model"}', '--gin.STEPS=1',
      '--gin.HASHED_LOSS=@losses.SamToNe()', '--gin.HASH_ALPHA=4.0',
      '--gin.losses.Hashed.straight_through=True', '--gin.MICRO_BATCH_SIZE=8',
      '--gin.FALSE_NEGATIVE_MARGIN=0.1',
      '--gin.losses.Similarity.check_norms=True',
  ))
  (row,) = tiny_run.logged(tmp_path / 'more')
  assert row['beta'] == pytest.approx(np.sqrt(3.0), rel=1e-6)
  assert 'HASHED_LOSS = @losses.SamToNe()' in (
      tmp_path / 'more' / 'config.gin'
  ).read_text()


def test_check_says_what_it_is_and_a_wrong_number_names_its_flag(
    tmp_path, capsys
):
  papers = '--gin.losses.InBatchSoftmax.bidirectional=False', '--no_compile'
  check.main(flags(tmp_path, 'model', *papers))
  said = capsys.readouterr().out
  assert 'Loss: Hashed.' in said and 'in-batch' in said
  with pytest.raises(UserError, match=r'HASH_START\) is 0\.5'):
    check.main(flags(tmp_path, 'model', '--gin.HASH_START=0.5'))
