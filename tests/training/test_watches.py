"""What is warned of, skipped and stopped for by the numbers of a step."""

import numpy as np
import pytest

from dualenc_jax.training import watches
from dualenc_jax.training.hooks import Training
from dualenc_jax.utils.errors import UserError

PATHS = ['a', 'b/c']


def at(step, notes=None, **metrics):
  fine = {
      'loss': 1.0,
      'gradient_squares': np.ones(2, np.float32),
      'finite': np.ones(2, bool),
  }
  run = Training(step, None, None, None, fine | metrics)
  run.notes = {} if notes is None else notes
  return run


def test_what_is_not_finite_stops_by_name():
  call = watches.non_finite(PATHS, 0, print).call
  call(at(1))
  for metrics, words in [
      ({'loss': np.nan}, r'Step 7: the loss is not finite\. Lower'),
      (
          {'gradient_squares': np.array([1, np.inf], np.float32)},
          'Step 7: the gradient of b/c is not finite',
      ),
      (
          {'finite': np.array([False, True])},
          'Step 7: the updated a is not finite',
      ),
  ]:
    with pytest.raises(UserError, match=words):
      call(at(7, **metrics))


def test_steps_left_out_are_counted_in_a_row():
  said, notes = [], {}
  bad = {'loss': np.nan, 'skipped': 1.0}
  # A run that goes on elsewhere counts on, by the notes of its checkpoint.
  for part in ([bad, bad], [{'skipped': 0.0}, bad]):
    call = watches.non_finite(PATHS, 2, said.append).call
    for step, metrics in enumerate(part):
      call(at(step, notes, **metrics))
  assert notes == {'skipped': {'in_a_row': 1, 'total': 3}}
  assert 'number 2 of at most 2 in a row, 2 in all' in said[1]
  assert len(said) == 3
  call(at(4, notes, **bad))
  with pytest.raises(UserError, match='Step 5: .* one more in a row than'):
    call(at(5, notes, **bad))
  # What the update itself has spoilt was not left out.
  with pytest.raises(UserError, match='the updated a is not finite'):
    call(at(6, {}, finite=np.array([False, True]), skipped=0.0))


def test_a_spike_of_the_loss_is_told_once():
  said = []
  call = watches.spikes(None, said.append).call
  rng = np.random.default_rng(0)
  losses = 2.0 + 0.1 * rng.normal(size=300)
  losses[40] = 50.0  # Too early to know.
  losses[200:203] = 3.5, 3.6, 3.7
  losses[210] = np.nan
  # By its definition, in NumPy.
  def is_spike(i):
    before = losses[i - 100 : i]
    return losses[i] > np.mean(before) + 6 * np.std(before)

  assert is_spike(200) and is_spike(201)
  assert not any(map(is_spike, [*range(150, 200), *range(203, 210)]))
  for i, loss in enumerate(losses):
    call(at(i, loss=loss))
  assert len(said) == 1 and said[0].startswith('WARNING: step 200: the loss')
