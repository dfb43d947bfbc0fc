"""The train step tells a loss how many steps it has taken."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_training

from dualenc_jax import losses
from dualenc_jax.errors import UserError
from dualenc_jax.losses import Hashed, Similarity
from dualenc_jax.objectives import Contrastive, contrastive
from dualenc_jax.training import Optimizer, Partitioner, step as step_lib

pytestmark = pytest.mark.devices(8)

SIMILARITY = Similarity(0.2)
LOSS = Hashed(gamma=0.5)


def trained(micro_batch_size=None, implementation='auto', steps=3):
  """Metrics of the first steps, and the gradients of the last."""
  model, partitioner = tiny_training.make_model(), Partitioner(2)
  abstract, _, step = tiny_training.plan(
      partitioner, model=model, loss=LOSS,
      similarity=dataclasses.replace(
          SIMILARITY, implementation=implementation, check_norms=True
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
      embeddings = contrastive.embed(model, params, batch)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    'micro_batch_size, implementation', [(None, 'dense'), (8, 'ring')]
)
def test_beta_follows_the_step(micro_batch_size, implementation):
  metrics, gradients = trained(micro_batch_size, implementation)
  values, wanted = by_hand()
  np.testing.assert_allclose(
      [m['beta'] for m in metrics], np.sqrt([1.0, 1.5, 2.0]), rtol=1e-6
  )
  # Steps follow one another, and their rounding with them.
  np.testing.assert_allclose([m['loss'] for m in metrics], values, rtol=1e-5)
  # The hashed vectors are of other norms; what the model returned is not.
  assert max(m['norm_error'] for m in metrics) < 1e-5
  for got, want in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True
  ):
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_the_part_whose_memory_is_reported_needs_no_step():
  objective = Contrastive(tiny_training.make_model(), LOSS, SIMILARITY)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  batch = tiny_training.make_batch(16, 1)
  value, own, vectors, rest = objective.apart(params, batch)
  found, metrics = jax.eval_shape(value, own, vectors, rest)
  assert found.shape == metrics['beta'].shape == ()
  with pytest.raises(UserError, match='depends on the step'):
    jax.eval_shape(objective, params, batch)


@dataclasses.dataclass(frozen=True)
class Seen:
  """An objective of one's own that returns what it is given."""

  frozen = ()

  def init(self, key):
    return {'x': jnp.zeros(())}

  def step(self, params, memory, batch, key):
    names = {'names': jnp.float32(len(jax.tree.leaves(batch)))}
    if isinstance(batch, dict):
      names['step'] = batch['step']
    return params['x'], {'loss': params['x'], **names}, memory


@pytest.mark.parametrize(
    'batch, names, step',
    [
        ({'a': np.zeros(8)}, 2, 0),
        # A column of one's own stays what it is.
        ({'a': np.zeros(8), 'step': np.full(8, 9)}, 2, 9),
        # What is no mapping has no place for it.
        ((np.zeros(8),), 1, None),
    ],
)
def test_a_batch_that_is_a_mapping_has_the_step(batch, names, step):
  partitioner = Partitioner()
  optimizer = Optimizer(optax.sgd(0.1), lambda step: 0.1)
  _, init, train_step = step_lib.plan(Seen(), optimizer, partitioner, 0)
  _, metrics = train_step(init(), partitioner.to_device(batch))
  assert metrics['names'] == names
  if step is not None:
    np.testing.assert_array_equal(np.unique(metrics['step']), step)
