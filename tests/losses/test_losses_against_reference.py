"""Value and gradients of every loss against float64 NumPy."""

import functools

import jax
import loss_cases
from loss_cases import LOSSES
import numpy as np
import pytest

from dualenc_jax.losses import LearnableTemperature

LEARNT = LearnableTemperature(0.05, minimum=0.01, maximum=0.5)


@functools.cache
def compiled():
  """All losses as one jitted function."""
  losses = {name: loss_cases.make(name, temperature=LEARNT) for name in LOSSES}
  return jax.jit(loss_cases.values_and_gradients(losses))


def run(embeddings, temperature):
  params = {'log_temperature': np.float32(np.log(temperature))}
  return jax.device_get(compiled()(params, embeddings))


# Margin and counted duplicates: test_loss_options.py.
@pytest.mark.parametrize(
    'size, num_negatives, duplicates, temperature',
    [
        (2, 3, False, 0.02),
        (16, 0, True, 0.05),
        (16, 1, False, 0.05),
        (16, 1, True, 0.07),
    ],
)
def test_value_and_gradients(size, num_negatives, duplicates, temperature):
  embeddings, batch = loss_cases.make_batch(size, num_negatives, duplicates)
  for name, got in run(embeddings, temperature).items():
    metrics = got[0][1]
    np.testing.assert_allclose(metrics['temperature'], temperature, rtol=1e-6)
    loss_cases.check(got, name, batch, temperature=temperature)


@pytest.mark.parametrize('learnt, used', [(0.004, 0.01), (0.9, 0.5)])
def test_the_gradient_beyond_a_bound_is_that_of_the_bound_or_0(learnt, used):
  led_back = set()
  for lean in (-2.0, 1.5):
    embeddings, batch = loss_cases.make_batch(16, 1, lean=lean)
    for name, (result, (params, vectors)) in run(embeddings, learnt).items():
      np.testing.assert_allclose(result[1]['temperature'], used, rtol=1e-6)
      want = loss_cases.check(
          (result, ({}, vectors)), name, batch, rounding=1e-4, tolerance=1e-3,
          temperature=used,
      ).gradients['log_temperature']
      back = want * (learnt - used) > 0.0
      led_back.add(bool(back))
      np.testing.assert_allclose(
          params['log_temperature'], back * want, rtol=1e-3
      )
  assert len(led_back) == 2


def test_a_batch_of_duplicates_teaches_nothing():
  for size, num_negatives in ((16, 0), (16, 1)):
    embeddings, _ = loss_cases.make_batch(size, num_negatives, True)
    embeddings = loss_cases.all_duplicates(embeddings)
    loss_cases.assert_nothing_is_learnt(run(embeddings, 0.05))


@pytest.mark.parametrize('num_negatives', [0, 1])
def test_chance_is_the_loss_where_all_embeddings_are_one(num_negatives):
  embeddings, _ = loss_cases.make_batch(16, num_negatives)
  embeddings = embeddings.map_vectors(lambda x: np.full_like(x, 0.25))
  for name, ((value, _), _) in run(embeddings, 0.05).items():
    loss, _ = loss_cases.make(name)
    chance = loss.chance(16, num_negatives)
    assert chance == pytest.approx(float(value), rel=1e-5), name
