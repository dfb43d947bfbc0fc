"""Value and gradients of every loss against float64 NumPy."""

import functools

import jax
import loss_cases
import numpy as np
import pytest
import reference

from dualenc_jax.losses import LearnableTemperature


@functools.cache
def compiled(**options):
  """All losses with these options, as one jitted function."""
  losses = {n: loss_cases.make(n, **options) for n in loss_cases.LOSSES}
  return loss_cases.jit(loss_cases.values_and_gradients(losses))


def expected(name, batch, **options):
  options = reference.Options(**options)
  sides = loss_cases.LOSSES[name][1](batch, options.mask_duplicates)
  return reference.evaluate(batch, sides, options)


def check(name, got, want):
  (value, metrics), (_, gradients) = got[name]
  assert abs(value - want.value) <= 1e-6 * abs(want.value), name
  assert metrics['loss'] == value
  loss_cases.assert_gradients_close(gradients, want.gradients)


# Margin, label smoothing and counted duplicates: test_loss_options.py.
@pytest.mark.parametrize(
    'size, num_negatives, duplicates, options',
    [
        (2, 3, False, {}),
        (7, 0, True, {'temperature': 0.05}),
        (64, 1, False, {'temperature': 0.05}),
        (64, 1, True, {'temperature': 0.05}),
    ],
)
def test_value_and_gradients(size, num_negatives, duplicates, options):
  embeddings, batch = loss_cases.make_batch(size, num_negatives, duplicates)
  got = jax.device_get(compiled(**options)({}, embeddings))
  for name in loss_cases.LOSSES:
    check(name, got, expected(name, batch, **options))


@pytest.mark.parametrize(
    'learnt, used', [(0.07, 0.07), (0.01, 0.03), (0.9, 0.5)]
)
def test_learnable_temperature(learnt, used):
  clamped = LearnableTemperature(0.05, minimum=0.03, maximum=0.5)
  embeddings, batch = loss_cases.make_batch(7, 1, True)
  params = {'log_temperature': np.float32(np.log(learnt))}
  got = jax.device_get(compiled(temperature=clamped)(params, embeddings))
  for name in loss_cases.LOSSES:
    want = expected(name, batch, temperature=used)
    check(name, got, want)
    (_, metrics), (gradients, _) = got[name]
    np.testing.assert_allclose(metrics['temperature'], used, rtol=1e-6)
    if learnt == used:
      loss_cases.assert_gradients_close(
          gradients, {'log_temperature': want.gradients['log_temperature']}
      )
    else:
      assert gradients['log_temperature'] == 0


def test_learnable_temperature_starts_at_its_initial_value():
  learnable = LearnableTemperature(initial=0.2)
  np.testing.assert_allclose(learnable(learnable.init()), 0.2, rtol=1e-6)
