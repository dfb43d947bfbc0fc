"""Options and weights by every implementation, against NumPy."""

import jax
import loss_cases
import meshes
import numpy as np
import pytest
import reference

from dualenc_jax.losses import LearnableTemperature
from dualenc_jax.training import Partitioner

TEMPERATURE = LearnableTemperature(0.1)
SMOOTH = {'margin': 0.2, 'label_smoothing': 0.3}
# Then only its number tells a row from itself.
UNMASKED = {'mask_duplicates': False}
# Masks many, as the positives of these batches are hardly closer.
GUARDED = {'false_negative_margin': 0.1, 'label_smoothing': 0.3}
# Between them these have every block as rows and as columns.
CASES = [
    ('samtone_both_towers', SMOOTH),
    ('pair_without_positive_two_way', SMOOTH),
    ('samtone_both_towers', UNMASKED),
    ('pair_with_queries_two_way', UNMASKED),
    ('samtone_both_towers', GUARDED),
    ('pair_with_queries_two_way', GUARDED),
]


def program(partitioner, cases, **options):
  losses = {
      case: loss_cases.make(name, temperature=TEMPERATURE, **more, **options)
      for case, (name, more) in enumerate(cases)
  }
  function = loss_cases.values_and_gradients(losses)
  if partitioner is None:
    return loss_cases.jit(function)
  return meshes.on_mesh(partitioner, function)


@pytest.mark.parametrize(
    'implementation, partitioner, cases, size, tile',
    [
        pytest.param('dense', None, CASES, 13, None, id='dense'),
        pytest.param('ring', None, CASES, 13, 4, id='ring'),
        pytest.param(
            'ring', Partitioner(), [CASES[1], CASES[2], CASES[4]], 24, 2,
            id='ring_on_8', marks=pytest.mark.slow,
        ),
    ],
)
def test_options_and_weights(implementation, partitioner, cases, size, tile):
  compiled = program(
      partitioner, cases, implementation=implementation, tile=tile
  )
  embeddings, batch = loss_cases.make_batch(size, 3, duplicates=True)
  rng = np.random.default_rng(size)
  equal = np.ones(size, np.float32)
  weights = rng.uniform(0.1, 3.0, size).astype(np.float32)
  weights[[1, -1]] = 0.0
  for weight in (equal, weights):
    batch_of_weights = embeddings._replace(columns={'weights': weight})
    got = jax.device_get(compiled(TEMPERATURE.init(), batch_of_weights))
    for case, (name, more) in enumerate(cases):
      (value, metrics), (params, vectors) = got[case]
      mask = more.get('mask_duplicates', True)
      want = reference.evaluate(
          batch, loss_cases.LOSSES[name][1](batch, mask),
          reference.Options(0.1, **more), weight,
      )
      assert abs(value - want.value) <= 1e-6 * want.value, name
      loss_cases.assert_gradients_close(params | vectors, want.gradients)
      assert metrics['loss'] == value
      if weight is equal:
        check_metrics(metrics, batch, name.startswith('samtone'), more)


def check_metrics(got, batch, same_tower, options):
  options = reference.Options(**options)
  mask = options.mask_duplicates
  terms = list(reference.query_side(batch, mask, same_tower))
  below = [
      (*pair, reference.below_limit(batch, *pair, negatives, options))
      for *pair, negatives in terms
  ]
  want = reference.metrics(batch, below, mask)
  left = want.pop('negatives')
  if np.isfinite(options.false_negative_margin):
    above = sum(len(t[2]) - len(b[2]) for t, b in zip(terms, below))
    size = len(batch.ids['query'])
    possible = (1 + same_tower) * (size - 1) + len(batch.ids['negatives'])
    want['false_negative_fraction'] = above / size / possible
    want['masked_fraction'] = 1 - left / possible
    assert 0.1 < want['false_negative_fraction'] < 0.9
  for name, value in want.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
