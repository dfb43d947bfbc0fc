"""Sums of losses and wrappers over them, against float64 NumPy."""

import functools

import jax
from loss_cases import (
  assert_gradients_close,
  make_batch,
  values_and_gradients,
)
import meshes
from meshes import without_kept_programs as without_kept_programs
import numpy as np
import pytest
import reference

from dualenc_jax import losses
from dualenc_jax.parallel import partitioning
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

LEARNT = losses.LearnableTemperature(0.1)
TOWERS = ('query', 'passage', 'negatives')
SAMTONE = functools.partial(
    reference.samtone_terms, mask=True, bidirectional=True
)
PAIR_TERMS = functools.partial(
    reference.pair_terms, mask=True, bidirectional=True, alpha=0.1,
    positive=True, queries=False,
)


def weighted(*results):
  """The sum of (weight, Result) by hand; the last has its own temperature."""
  gradients = {k: sum(w * r.gradients[k] for w, r in results) for k in TOWERS}
  return reference.Result(sum(w * r.value for w, r in results), gradients)


def test_a_sum_is_that_of_its_parts():
  similarity = losses.Similarity(LEARNT)
  both = ((losses.SamToNe(), 0.7), (losses.PAIR(), 0.3))
  cases = {
      'part': losses.SamToNe(),
      'one': losses.Sum(((losses.SamToNe(), 1.0),)),
      'both': losses.Sum(both),
      'nested': losses.Sum(((losses.Sum(both[:1]), 1.0), both[1])),
  }
  program = meshes.on_mesh(
      meshes.SmallPartitioner(devices=2),
      values_and_gradients({k: (x, similarity) for k, x in cases.items()}),
  )
  embeddings, batch = make_batch(6, 2, duplicates=True)
  got = jax.device_get(program(LEARNT.init(), embeddings))
  for a, b in zip(
      *(jax.tree.leaves((got[k][0][0], got[k][1])) for k in ('part', 'one')),
      strict=True,
  ):
    np.testing.assert_array_equal(a, b)

  parts = [
      reference.evaluate(batch, terms(batch), reference.Options(0.1))
      for terms in (SAMTONE, PAIR_TERMS)
  ]
  want = weighted((0.7, parts[0]), (0.3, parts[1]))
  for name in ('both', 'nested'):
    (value, _), (_, gradients) = got[name]
    np.testing.assert_allclose(value, want.value, rtol=1e-6)
    assert_gradients_close(gradients, want.gradients)
  metrics = got['both'][0][1]
  np.testing.assert_allclose(metrics['SamToNe/loss'], parts[0].value, rtol=1e-6)
  np.testing.assert_allclose(metrics['PAIR/loss'], parts[1].value, rtol=1e-6)
  # What any batch has, and what the first part has that is no loss.
  assert metrics['accuracy'] == metrics['SamToNe/accuracy']
  assert {'temperature', 'positive_similarity'} < metrics.keys()
  assert 'query_side_loss' not in metrics
  assert 'Sum/SamToNe/query_side_loss' in got['nested'][0][1]


def test_parameters_of_parts_have_their_names():
  own = losses.AtTemperature(losses.PAIR(), losses.LearnableTemperature(0.2))
  loss = losses.Sum(((losses.SamToNe(), 1.0), (own, 1.0), (own, 0.5)))
  params = losses.init(loss, losses.Similarity(LEARNT))
  assert partitioning.leaf_paths(params) == [
      'AtTemperature_2/log_temperature',
      'AtTemperature_3/log_temperature',
      'log_temperature',
  ]
  embeddings, _ = make_batch(6, 0)
  function = values_and_gradients({0: (loss, losses.Similarity(LEARNT))})
  (_, metrics), (gradients, _) = jax.jit(function)(params, embeddings)[0]
  np.testing.assert_allclose(metrics['temperature'], 0.1, rtol=1e-6)
  np.testing.assert_allclose(
      metrics['AtTemperature_3/temperature'], 0.2, rtol=1e-6
  )
  slopes = [gradients[f'AtTemperature_{i}']['log_temperature'] for i in (2, 3)]
  np.testing.assert_allclose(slopes[1], 0.5 * slopes[0], rtol=1e-5)
  with pytest.raises(UserError, match='AtTemperature and Sim.*log_temperature'):
    losses.init(own, losses.Similarity(LEARNT))
