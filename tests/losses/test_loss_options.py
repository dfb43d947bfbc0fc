"""Options and weights by every implementation, against NumPy."""

import jax
import loss_cases
import meshes
import numpy as np
import pytest
import reference

from dualenc_jax.losses import LearnableTemperature
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

TEMPERATURE = LearnableTemperature(0.1)
MARGIN = {'margin': 0.2}
# Then only its number tells a row from itself.
UNMASKED = {'mask_duplicates': False}
# Masks many, as the positives of these batches are hardly closer.
GUARDED = {'false_negative_margin': 0.1}
# Between them these have every block as rows and as columns.
CASES = [
    ('pair_without_positive_two_way', MARGIN),
    ('samtone_both_towers', UNMASKED),
    ('samtone_both_towers', GUARDED),
    ('samtone_both_towers', MARGIN),
    ('pair_union_two_way', UNMASKED),
    ('pair_union_two_way', GUARDED),
]


@pytest.mark.parametrize(
    'implementation, partitioner, cases, size, tile',
    [
        pytest.param('dense', None, CASES[:4], 13, None, id='dense'),
        # A shard has to know which of another's rows are its own.
        pytest.param('ring', Partitioner(), CASES[1:2], 24, 2, id='ring'),
        pytest.param(
            'dense', None, CASES[4:], 13, None, id='union',
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            'ring', Partitioner(), [CASES[0], CASES[2]], 24, 2, id='margins',
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_options_and_weights(implementation, partitioner, cases, size, tile):
  losses = {
      case: loss_cases.make(
          name, temperature=TEMPERATURE, implementation=implementation,
          tile=tile, **more,
      )
      for case, (name, more) in enumerate(cases)
  }
  compiled = meshes.on_mesh(
      partitioner, loss_cases.values_and_gradients(losses)
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
      loss_cases.check(
          got[case], name, batch, weight, temperature=0.1, **more
      )
      if weight is equal:
        metrics = got[case][0][1]
        check_metrics(metrics, batch, name.startswith('samtone'), more)
  if implementation == 'dense':
    found = compiled(TEMPERATURE.init(), loss_cases.all_duplicates(embeddings))
    masked = {k: x for k, x in found.items() if cases[k][1] is not UNMASKED}
    loss_cases.assert_nothing_is_learnt(masked)


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
