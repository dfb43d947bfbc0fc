"""Losses x dense, ring x whole, micro-batched x padded, packed: one value."""

import dataclasses

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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
        losses.PAIR(form='released'),
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


class All(losses.Loss):
  """All losses, in one program, which takes less to compile than one each.

  Its value is the sum of their logarithms, so that none outweighs the others
  in the gradient.
  """

  def __call__(self, params, batch, similarity):
    found = {}
    for name, (loss, options) in LOSSES.items():
      own = dataclasses.replace(similarity, **options)
      found[name], metrics = loss(params, batch, own)
      if 'guarded' in name:
        found[f'{name}, left out'] = metrics['false_negative_fraction']
    return sum(jnp.log(found[name]) for name in LOSSES), found


def value_and_gradients(implementation, micro, layout):
  """Of one batch, and one model."""
  cache = text_reading.random_cache(
      64, 0, QUERY, PASSAGE, vocab=tiny_training.VOCAB
  )
  rng = np.random.default_rng(0)
  cache.teacher_scores, cache.negative_teacher_scores = (
      rng.normal(scale=4, size=len(tokens)).astype(np.float32)
      for tokens in (cache.passage_tokens, cache.negative_tokens)
  )
  objective = Contrastive(
      tiny_training.make_model(), All(),
      losses.Similarity(0.2, implementation, 4), K, micro, layout,
  )
  batch = Batches(
      [cache], SIZE, 0, QUERY, PASSAGE, K, layout=layout,
      cells=SIZE // (micro or SIZE), columns=(TEACHER_SCORES,),
  )(0)
  batch['step'] = np.int32(7)
  params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
  function = jax.value_and_grad(objective, has_aux=True)
  return jax.device_get(jax.jit(function)(params, batch))


def test_one_value_and_gradient():
  """All choices at once: what one of them changes would show."""
  (_, wanted), of_wanted = value_and_gradients('dense', None, Padded())
  (_, found), gradients = value_and_gradients('ring', 4, Packed())
  for name in LOSSES:
    np.testing.assert_allclose(found[name], wanted[name], 1e-5, err_msg=name)
    if 'guarded' in name:
      assert 0 < found[f'{name}, left out'] < 1
  for leaf, other in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(of_wanted)
  ):
    scale = np.abs(other).max()
    np.testing.assert_allclose(leaf, other, atol=2e-5 * scale)
