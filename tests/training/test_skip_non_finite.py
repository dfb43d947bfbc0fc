"""Steps that are left out, against a loop in NumPy that leaves them out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_training

from dualenc_jax.objectives import Objective
from dualenc_jax.training import Optimizer, Partitioner, step as step_lib

pytestmark = pytest.mark.devices(8)

RATES = [0.1, 0.08, 0.06, 0.04, 0.02, 0.01]


def schedule(count):
  return jnp.array(RATES, jnp.float32)[count]


class Squares(Objective):
  """Least squares with a memory: the last residuals."""

  def init(self, key):
    return {'w': jnp.arange(3.0), 'b': jnp.ones(2)}

  def step(self, params, memory, batch, key):
    wanted = batch['x'] @ params['w'] + params['b'].sum()
    off = wanted - batch['y']
    loss = jnp.mean(jnp.square(off))
    return loss, {'loss': loss, 'drawn': jax.random.uniform(key)}, off


def batches():
  rng = np.random.default_rng(0)
  for step in range(6):
    x, y = rng.normal(size=(8, 3)), rng.normal(size=8)
    if step in (1, 3, 4):
      # NaN in the loss; an infinite loss; a loss that is finite, alone.
      x[2, 1] = {1: np.nan, 3: np.inf, 4: 3e18}[step]
    yield {'x': x.astype(np.float32), 'y': y.astype(np.float32)}


def by_numpy(skip):
  """Parameters, momenta, memory after each step, float64; by hand."""
  w, b = np.arange(3.0), np.ones(2)
  mw, mb, memory, count = 0 * w, 0 * b, np.zeros(8), 0
  for step, batch in enumerate(batches()):
    x, y = batch['x'].astype(np.float64), batch['y'].astype(np.float64)
    if step not in skip:
      off = x @ w + b.sum() - y
      mw = 0.5 * mw + 2 * off @ x / 8
      mb = 0.5 * mb + 2 * off.mean() * np.ones(2)
      w, b = w - RATES[count] * mw, b - RATES[count] * mb
      memory, count = off, count + 1
    yield w, b, memory, count


def make_plan(optimizer, partitioner=tiny_training.OneDevice()):
  memory = jax.ShapeDtypeStruct((8,), jnp.float32)
  return step_lib.plan(Squares(), optimizer, partitioner, 3, memory)


@pytest.mark.parametrize(
    'partitioner', [tiny_training.OneDevice(), Partitioner()]
)
def test_a_step_left_out_changes_nothing(partitioner):
  optimizer = Optimizer(
      optax.sgd(schedule, momentum=0.5), schedule, skip_non_finite=2
  )
  plan = make_plan(optimizer, partitioner)
  state, skipped = plan.init(), []
  # The loss of step 4 is some 1e36: its gradient's square is not finite.
  for batch, (w, b, memory, count) in zip(batches(), by_numpy({1, 3, 4})):
    before = jax.device_get(state)
    state, metrics = plan.train_step(state, partitioner.to_device(batch))
    skipped.append(int(metrics['skipped']))
    after = jax.device_get(state)
    np.testing.assert_allclose(after.params['w'], w, rtol=2e-6)
    np.testing.assert_allclose(after.params['b'], b, rtol=2e-6)
    np.testing.assert_allclose(after.memory, memory, rtol=1e-5, atol=1e-6)
    counts = [x for x in jax.tree.leaves(after.opt_state) if x.shape == ()]
    assert counts and all(x == count for x in counts)
    assert after.step == before.step + 1
    # Dropout is of the seed and the step, whether steps are left out or not.
    key = jax.random.fold_in(jax.random.key(3), before.step)
    assert metrics['drawn'] == jax.random.uniform(key)
    if skipped[-1]:
      jax.tree.map(np.testing.assert_array_equal, before[1:], after[1:])
    assert np.all(metrics['finite'])
  assert skipped == [0, 1, 0, 1, 1, 0]


def test_without_it_the_state_is_spoilt_and_that_is_told():
  plan = make_plan(Optimizer(optax.sgd(schedule), schedule))
  state = plan.init()
  for batch, finite in zip(batches(), (True, False)):
    state, metrics = plan.train_step(state, batch)
    assert 'skipped' not in metrics
    # In the order of paths, b and w: a NaN in the loss is in every gradient.
    assert [*metrics['finite']] == [finite] * 2
    bad = step_lib.non_finite_tensors(jax.device_get(metrics), ['b', 'w'])
    names = ['the loss', 'the gradient of b', 'the gradient of w']
    assert bad == ([] if finite else names)
