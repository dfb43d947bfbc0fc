"""The train step tells a loss how many steps it has taken."""

import dataclasses

import jax
import numpy as np
import tiny_training

from dualenc_jax import losses
from dualenc_jax.losses import Hashed, Similarity
from dualenc_jax.objectives import encoding

SIMILARITY = Similarity(0.2)
LOSS = Hashed(gamma=0.5)


def trained(micro_batch_size, implementation, steps=3):
  """Metrics of the first steps, and the gradients of the last."""
  model, partitioner = tiny_training.make_model(), tiny_training.OneDevice()
  abstract, _, step, _ = tiny_training.plan(
      partitioner, model=model, loss=LOSS,
      similarity=dataclasses.replace(
          SIMILARITY, implementation=implementation
      ),
      micro_batch_size=micro_batch_size,
  )
  state = tiny_training.make_state(
      abstract, params=tiny_training.init_params(model, LOSS, SIMILARITY)
  )
  found = []
  for k in range(steps):
    batch = tiny_training.make_batch(16, 1, seed=k)
    state, metrics = step(state, partitioner.to_device(batch))
    found.append(jax.device_get(metrics))
  return found, jax.device_get(state.opt_state[0].trace)


def by_hand(steps=3):
  """The same by plain JAX: the step is given to the loss as it is."""
  model = tiny_training.make_model()
  params = tiny_training.init_params(model, LOSS, SIMILARITY)
  found = []

  @jax.jit
  def value_and_gradient(params, batch, step):
    def value(params):
      embeddings = encoding.embed(model, params, batch)
      return losses.evaluate(
          LOSS, SIMILARITY, {}, embeddings._replace(step=step)
      )[0]

    return jax.value_and_grad(value)(params)

  for k in range(steps):
    batch = tiny_training.make_batch(16, 1, seed=k)
    value, gradients = value_and_gradient(params, batch, np.int32(k))
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    found.append(float(value))
  return found, jax.device_get(gradients)


def test_beta_follows_the_step():
  metrics, gradients = trained(8, 'ring')
  values, wanted = by_hand()
  np.testing.assert_allclose(
      [m['beta'] for m in metrics], np.sqrt([1.0, 1.5, 2.0]), rtol=1e-6
  )
  # Steps follow one another, and their rounding with them.
  np.testing.assert_allclose([m['loss'] for m in metrics], values, rtol=1e-5)
  for got, want in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True
  ):
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
