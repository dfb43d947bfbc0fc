"""Losses over the first components of embeddings, against float64 NumPy."""

import functools

import jax
import loss_cases
import meshes
from meshes import without_kept_programs as without_kept_programs
import numpy as np
import pytest
import reference

from dualenc_jax.losses import (
  AtTemperature,
  Distill,
  evaluate,
  LearnableTemperature,
  Matryoshka,
  SamToNe,
  Similarity,
  Sum,
)
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

LEARNT = LearnableTemperature(0.1)
DIMS = 4, 16, 11  # Not in order.


def wrapped(name, implementation):
  loss, similarity = loss_cases.make(
      name, temperature=LEARNT, implementation=implementation, tile=3
  )
  return Matryoshka(loss, DIMS), similarity


def check(got, name, batch):
  (value, metrics), (params, vectors) = got
  terms = loss_cases.LOSSES[name][1]
  want = reference.matryoshka(
      batch, lambda part: terms(part, True), reference.Options(0.1),
      dict.fromkeys(DIMS, 1.0),
  )
  np.testing.assert_allclose(value, want.value, rtol=2e-6)
  loss_cases.assert_gradients_close(params | vectors, want.gradients)
  np.testing.assert_allclose(
      sum(metrics[f'{dim}/loss'] for dim in DIMS), value, 1e-6
  )


# No implementation knows the wrapper, which knows no loss.
@pytest.mark.parametrize(
    'name, implementation',
    [('softmax_two_way', 'ring'), ('samtone_both_towers', 'dense')],
)
def test_any_loss_may_be_wrapped(name, implementation):
  embeddings, batch = loss_cases.make_batch(6, 2, duplicates=True)
  program = meshes.on_mesh(
      meshes.SmallPartitioner(devices=2),
      loss_cases.values_and_gradients({name: wrapped(name, implementation)}),
  )
  got = jax.device_get(program(LEARNT.init(), embeddings))
  check(got[name], name, batch)


def test_metrics_are_those_of_the_whole_embeddings():
  embeddings, _ = loss_cases.make_batch(6, 2)
  losses = SamToNe(), Matryoshka(SamToNe(), (16,)), Matryoshka(SamToNe())
  (value, alone), (only, of_only), (total, metrics) = jax.jit(
      lambda batch: [evaluate(x, Similarity(0.1), {}, batch) for x in losses]
  )(embeddings)
  assert only == value and of_only == {**alone, '16/loss': value}
  # None are halves.
  parts = [metrics.pop(f'{dim}/loss') for dim in (16, 8, 4, 2)]
  np.testing.assert_allclose(total, sum(parts), rtol=1e-6)
  assert {**metrics, 'loss': value} == alone and parts[0] == value


def test_chance_is_that_of_all_dims():
  batch, _ = loss_cases.make_batch(12, 1, dim=4)
  loss = Matryoshka(SamToNe(), (4, 3))

  def half(x):
    return np.full_like(x, 0.5)

  value, _ = jax.jit(functools.partial(evaluate, loss, Similarity(0.1), {}))(
      batch.map_vectors(half)
  )
  assert loss.chance(12, 1) == pytest.approx(float(value), rel=1e-5)
  inner = SamToNe().chance(12, 1)
  assert Matryoshka(SamToNe()).chance(12, 1) == pytest.approx(4 * inner)
  assert Matryoshka(Distill()).chance(12, 1) is None


def test_dims_are_told_through_sums():
  loss = Matryoshka(SamToNe(), (4, 16))
  assert loss.trained_dims(16) == (16, 4)
  assert Matryoshka(SamToNe()).trained_dims(768) == (768, 384, 192, 96)
  both = Sum(((SamToNe(), 1.0), (AtTemperature(loss, 0.1), 1.0)))
  assert both.trained_dims(16) == (16, 4)
  assert SamToNe().trained_dims(16) == ()


@pytest.mark.parametrize(
    'options, size, message',
    [
        ({'dims': (16, 4, 4)}, 16, 'dims is .*expected different whole'),
        ({'dims': (8, 4)}, 16, 'have 16 components. Expected 16 itself'),
        ({}, 7, 'have 7 components. Expected 7 itself'),
    ],
)
def test_what_cannot_be_is_refused(options, size, message):
  embeddings, _ = loss_cases.make_batch(4, 0, dim=size)
  with pytest.raises(UserError, match=message):
    loss = Matryoshka(SamToNe(), **options)
    evaluate(loss, Similarity(0.1), {}, embeddings)
