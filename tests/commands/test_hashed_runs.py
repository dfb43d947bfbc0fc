"""BPR through `dualenc train` and its gin file."""

import numpy as np
import pytest
import tiny_run

from dualenc_jax.commands import cli, train
from dualenc_jax.errors import UserError

HASHED = '--gin_file=losses/hashed.gin'


def flags(folder, model, *more):
  argv = tiny_run.flags(folder, HASHED, '--gin.NUM_NEGATIVES=1', *more)
  return ['train', *argv, f'--model_dir={folder / model}']


def logged(model_dir, name):
  return {row['step']: row[name] for row in tiny_run.logged(model_dir)}


@pytest.mark.slow
def test_it_trains_resumes_and_goes_on_from_another_run(tmp_path):
  whole = flags(tmp_path, 'whole', '--gin.STEPS=4', '--gin.HASH_GAMMA=0.5')
  cli.main(whole)
  found = tmp_path / 'whole'
  betas = logged(found, 'beta')
  # The first step, of which line 1 tells, was taken when none had been.
  wanted = np.sqrt([1.0, 1.5, 2.0, 2.5])
  np.testing.assert_allclose([betas[k] for k in (1, 2, 3, 4)], wanted, 1e-6)
  for step, loss in logged(found, 'loss').items():
    parts = [
        logged(found, f'{part}_loss')[step] for part in ('dense', 'candidate')
    ]
    assert loss == pytest.approx(sum(parts), rel=1e-5)
    assert 0 < logged(found, 'bit_balance')[step] <= 1
    assert 0 <= logged(found, 'saturation')[step] <= 1

  # Stopped after two steps, it goes on as if it had not been.
  half = [f for f in whole if 'STEPS' not in f and 'model_dir' not in f]
  half += [f'--model_dir={tmp_path / "half"}', '--allow_config_change']
  schedule = ['--gin.optax.linear_schedule.transition_steps=4']
  cli.main([*half, '--gin.STEPS=2', *schedule])
  cli.main([*half, '--gin.STEPS=4', *schedule])
  for name in ('beta', 'loss', 'saturation'):
    assert logged(tmp_path / 'half', name) == logged(found, name)

  # Another run counts from 0 again, so it is told where this one ended.
  cli.main(flags(
      tmp_path, 'more', '--gin.HASH_GAMMA=0.5',
      f'--gin.INITIAL_CHECKPOINT_PATH={found}', '--gin.HASH_START=4',
      '--gin.STEPS=1',
  ))
  np.testing.assert_allclose(
      logged(tmp_path / 'more', 'beta')[1], np.sqrt(3.0), 1e-6
  )


@pytest.mark.slow
def test_any_loss_in_micro_batches_from_ring_to_ring(tmp_path):
  cli.main(flags(
      tmp_path, 'model', '--gin.HASHED_LOSS=@losses.SamToNe()',
      '--gin.HASH_ALPHA=4.0', '--gin.losses.Hashed.straight_through=True',
      '--gin.MICRO_BATCH_SIZE=8', '--gin.LOSS_IMPLEMENTATION=ring',
      '--gin.FALSE_NEGATIVE_MARGIN=0.1',
      '--gin.losses.Similarity.check_norms=True',
  ))
  config = (tmp_path / 'model' / 'config.gin').read_text()
  assert 'HASHED_LOSS = @losses.SamToNe()' in config
  assert set(logged(tmp_path / 'model', 'candidate_loss')) == {1, 2}


@pytest.mark.slow
def test_check_says_what_it_needs(tmp_path, capsys):
  papers = ['--gin.losses.InBatchSoftmax.bidirectional=False']
  cli.main(['check', *flags(tmp_path, 'model', *papers)[1:]])
  said = capsys.readouterr().out
  assert 'Loss: Hashed.' in said and 'in-batch' in said
  assert any(line.startswith('  loss ') for line in said.splitlines())


def test_a_wrong_number_names_its_flag(tmp_path):
  with pytest.raises(UserError, match=r'HASH_START\) is 0\.5'):
    train.main(flags(tmp_path, 'model', '--gin.HASH_START=0.5')[1:])
