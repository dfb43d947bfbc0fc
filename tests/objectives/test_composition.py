"""Losses x dense, ring x whole, micro-batched x padded, packed: one value."""

import functools

from flax import linen as nn
import jax
import numpy as np
import pytest
import text_reading
import tiny_training

from dualenc_jax import losses
from dualenc_jax.data import Batches, Packed, Padded
from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.objectives import Contrastive

SIZE, QUERY, PASSAGE, K = 16, 8, 24, 2
GUARD = {'false_negative_margin': 0.1}
LOSSES = {
    'softmax, guarded': (losses.InBatchSoftmax(), GUARD),
    'samtone, guarded': (losses.SamToNe(both_towers=True), GUARD),
    'pair as released': (
        losses.PAIR(queries_in_denominator=True, passages_in_denominator=False),
        {},
    ),
    'softmax and distillation': (
        losses.Sum((
            (losses.InBatchSoftmax(), 0.5),
            (losses.AtTemperature(losses.Distill(), 0.2), 1.0),
        )),
        GUARD,
    ),
    'margin-MSE': (losses.MarginMSE(teacher_temperature=3.0), {}),
    'hashed, guarded': (losses.Hashed(), GUARD),
    'matryoshka': (losses.Matryoshka(losses.SamToNe(), dims=(16, 4)), GUARD),
}
# With dense, whole and padded, that they are compared with, every two of the
# choices meet with every loss. All but the first are slow tests.
CHOICES = (
    ('ring', None, Packed()), ('dense', 4, Packed()), ('ring', 4, Padded())
)
CASES = [
    pytest.param(
        name, *choice,
        id='-'.join([name, *map(str, choice[:2]), type(choice[2]).__name__]),
        marks=[] if i == j == 0 else [pytest.mark.slow],
    )
    for i, name in enumerate(LOSSES)
    for j, choice in enumerate(CHOICES)
]


@functools.cache
def make_cache():
  cache = text_reading.random_cache(
      64, 0, QUERY, PASSAGE, vocab=tiny_training.VOCAB
  )
  rng = np.random.default_rng(0)
  cache.teacher_scores, cache.negative_teacher_scores = (
      rng.normal(scale=4, size=len(tokens)).astype(np.float32)
      for tokens in (cache.passage_tokens, cache.negative_tokens)
  )
  return cache


@functools.cache
def value_and_gradients(name, implementation, micro, layout):
  """Of one batch, and one model."""
  loss, options = LOSSES[name]
  objective = Contrastive(
      tiny_training.make_model(), loss,
      losses.Similarity(0.2, implementation, 4, **options), K, micro, layout,
  )
  batch = Batches(
      [make_cache()], SIZE, 0, QUERY, PASSAGE, K, layout=layout,
      cells=SIZE // (micro or SIZE), columns=(TEACHER_SCORES,),
  )(0)
  batch['step'] = np.int32(7)
  params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
  function = jax.value_and_grad(objective, has_aux=True)
  return jax.device_get(jax.jit(function)(params, batch))


@pytest.mark.parametrize('name, implementation, micro, layout', CASES)
def test_one_value_and_gradient(name, implementation, micro, layout):
  (wanted, _), of_wanted = value_and_gradients(name, 'dense', None, Padded())
  (found, metrics), gradients = value_and_gradients(
      name, implementation, micro, layout
  )
  assert found == pytest.approx(wanted, rel=1e-5)
  if 'guarded' in name:
    assert 0 < metrics['false_negative_fraction'] < 1
  for leaf, other in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(of_wanted)
  ):
    scale = np.abs(other).max()
    np.testing.assert_allclose(leaf, other, atol=2e-5 * scale)
