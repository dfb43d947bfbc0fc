"""Adafactor against its paper; freezing and learning-rate multipliers."""

import math
import re

import jax
import numpy as np
import optax
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.training import Optimizer

STEPS = 5
SCHEDULE = optax.linear_schedule(1e-2, 0.0, STEPS)


def adafactor():
  """As in gin/optimizers/adafactor.gin."""
  return optax.adafactor(
      learning_rate=SCHEDULE, min_dim_size_to_factor=128, decay_rate=0.8,
      multiply_by_parameter_scale=True, clipping_threshold=1.0,
  )


def make_params():
  rng = np.random.default_rng(0)
  shapes = {
      'wide': {'kernel': (128, 192)},
      'tall': {'kernel': (256, 130)},
      'small': {'kernel': (127, 300)},
      'norm': {'scale': (64,)},
      'tiny': {'scale': (4,)},
  }
  params = jax.tree.map(
      lambda shape: rng.normal(0, 0.3, shape).astype(np.float32),
      shapes,
      is_leaf=lambda x: isinstance(x, tuple),
  )
  # Below the least parameter scale, 1e-3.
  params['tiny']['scale'] *= 1e-4
  return params


def make_gradients(params, step):
  # Step 2 has large gradients, so that its update is clipped.
  rng = np.random.default_rng(100 + step)
  scale = 20.0 if step == 2 else 1.0
  return jax.tree.map(
      lambda p: (scale * rng.normal(size=p.shape)).astype(np.float32), params
  )


def run(optimizer, params, steps=STEPS):
  """Parameters after each step, and the last state."""
  transform = optimizer.build(params)
  state = transform.init(params)
  update = jax.jit(transform.update)
  history = [params]
  for step in range(steps):
    updates, state = update(make_gradients(params, step), state, params)
    params = optax.apply_updates(params, updates)
    history.append(jax.device_get(params))
  return history, state


def first_updates(transform, params):
  state = transform.init(params)
  gradients = make_gradients(params, 0)
  # So that equal products are rounded alike in programs that differ.
  update = jax.jit(
      transform.update, compiler_options={'xla_cpu_use_fusion_emitters': True}
  )
  return update(gradients, state, params)[0]


class PaperAdafactor:
  """Algorithms 4 and 5 of Shazeer and Stern (2018), one tensor, float64."""

  def __init__(self, shape):
    self.factored = len(shape) == 2 and min(shape) >= 128
    self.row, self.column = np.zeros(shape[:1]), np.zeros(shape[-1:])
    self.v = np.zeros(shape)
    self.clipped = []

  def update(self, t, x, gradient, rho):
    """The parameter after step t = 1, 2, ... of relative step size rho."""
    beta = 1.0 - t**-0.8
    square = gradient**2 + 1e-30
    if self.factored:
      rows, columns = square.shape
      self.row = beta * self.row + (1 - beta) * square @ np.ones(columns)
      self.column = beta * self.column + (1 - beta) * np.ones(rows) @ square
      v = np.outer(self.row, self.column) / self.row.sum()
    else:
      v = self.v = beta * self.v + (1 - beta) * square
    u = gradient / np.sqrt(v)
    rms = math.sqrt(np.mean(u**2))
    self.clipped.append(rms > 1.0)
    scale = max(1e-3, math.sqrt(np.mean(x**2)))
    return x - rho * scale * u / max(1.0, rms / 1.0)


def test_adafactor_is_that_of_the_paper():
  params = make_params()
  history, _ = run(Optimizer(adafactor(), SCHEDULE), params)
  for name, tensors in params.items():
    for kind, tensor in tensors.items():
      paper = PaperAdafactor(tensor.shape)
      assert paper.factored == (name in ('wide', 'tall'))
      x = tensor.astype(np.float64)
      for step in range(STEPS):
        gradient = make_gradients(params, step)[name][kind].astype(np.float64)
        x = paper.update(step + 1, x, gradient, 1e-2 * (1 - step / STEPS))
        moved = np.max(np.abs(x - tensor))
        error = np.max(np.abs(history[step + 1][name][kind] - x))
        # Rounding of float32 parameters near 1.
        assert error < 1e-5 * moved + 2e-7 * np.max(np.abs(x)), (name, step)
      assert any(paper.clipped) and not all(paper.clipped), name


def test_clipping_is_to_the_norm_of_all_that_trains_together():
  params = make_params()
  gradients = make_gradients(params, 0)
  del gradients['wide']
  norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64))
                     for g in jax.tree.leaves(gradients)))
  for clip_norm in (norm / 3, norm * 3):
    updates = first_updates(
        Optimizer(
            optax.sgd(1.0), SCHEDULE, freeze=('wide/.*',), clip_norm=clip_norm
        ).build(params),
        params,
    )
    factor = min(1, clip_norm / norm)
    for name, tensors in gradients.items():
      for kind, gradient in tensors.items():
        np.testing.assert_allclose(
            updates[name][kind], -factor * gradient, rtol=1e-5
        )


def test_what_the_objective_freezes_may_be_frozen_again():
  params = make_params()
  mine = Optimizer(optax.sgd(1.0), SCHEDULE, freeze=('wide/.*',))
  updates = first_updates(mine.build(params, ('wide/.*', 'w.*')), params)
  assert not np.any(updates['wide']['kernel'])
  assert np.any(updates['tall']['kernel'])


@pytest.mark.parametrize(
    'given, message',
    [
        ({'learning_rate': lambda step: 'abc'}, 'give no number'),
        ({'learning_rate': lambda step: -1.0}, 'is -1.0; expected .* step 0'),
        ({'learning_rate': lambda step: math.nan}, 'is nan; expected .*'),
        ({'clip_norm': 0}, 'CLIP_NORM is 0; expected a number above'),
        ({'skip_non_finite': -1}, 'SKIP_NON_FINITE is -1; expected 0 or'),
        ({'freeze': ('.*',)}, 'FREEZE matches every parameter'),
        ({'freeze': ('wid/kernel',)}, "FREEZE: .*'wid/kernel'.*wide/kernel"),
        ({'freeze': ('wide/.*', 'w.*')}, "FREEZE: the rule 'w.*' has no eff"),
        (
            {'multipliers': (('wid/kernel', 2.0),)},
            "LR_MULTIPLIERS: .*'wid/kernel'.*wide/kernel",
        ),
        (
            {'multipliers': (('.*/kernel', 3.0), ('wide/.*', 0.25))},
            r"LR_MULTIPLIERS: the rule 'wide/\.\*' has no effect",
        ),
        *(
            (
                {'multipliers': (('.*', 1.0), rule)},
                re.escape(f'LR_MULTIPLIERS holds {rule!r}; expected pairs'),
            )
            for rule in (
                'wide/.*', ('wide/.*', -1), ('wide/.*', math.nan),
                ('wide/.*', True),
            )
        ),
    ],
)
def test_what_cannot_be(given, message):
  given = {'learning_rate': SCHEDULE, **given}
  with pytest.raises(UserError, match=message):
    Optimizer(adafactor(), **given).build(jax.eval_shape(make_params))


def test_multipliers_scale_updates_exactly():
  params = make_params()
  plain = Optimizer(adafactor(), SCHEDULE).build(params)
  scaled = Optimizer(
      adafactor(),
      SCHEDULE,
      # The second rule comes too late for 'wide'.
      multipliers=(('wide/.*', 0.25), ('.*/kernel', 3.0), ('tiny/.*', 0.0)),
  ).build(params)
  want, got = first_updates(plain, params), first_updates(scaled, params)
  factors = {'wide': 0.25, 'tall': 3.0, 'small': 3.0, 'norm': 1.0, 'tiny': 0.0}
  for name, factor in factors.items():
    for kind, update in want[name].items():
      assert np.any(update != 0)
      np.testing.assert_array_equal(
          got[name][kind], update * np.float32(factor), err_msg=name
      )


def test_a_schedule_is_told_by_where_it_turns():
  cycle = optax.linear_onecycle_schedule(100, 3e-3, 0.1, 1.0, 1e9, 1e9)
  for schedule, steps, wanted in (
      (SCHEDULE, STEPS, '0.01 to 0'),
      (lambda step: 0.5, STEPS, '0.5'),
      (cycle, 100, '0 to 0.003 to 0'),
  ):
    found = Optimizer(adafactor(), schedule).describe(steps)
    assert found == f'learning rate {wanted}'
