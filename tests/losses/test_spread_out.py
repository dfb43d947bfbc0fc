"""The spread-out regulariser, against sentence-transformers and NumPy."""

import jax
import loss_cases
import meshes
import numpy as np
import pytest
from sentence_transformers.losses import GlobalOrthogonalRegularizationLoss
import torch

from dualenc_jax.losses import (
  InBatchSoftmax,
  LearnableTemperature,
  Similarity,
  SpreadOut,
  Sum,
)
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

LOSSES = {
    'both': SpreadOut(), 'mean': SpreadOut(0.7, 0.0),
    'second': SpreadOut(0.0, 3.0),
}


def theirs(batch, loss):
  """Value and gradients of their sum over both towers, in float64."""
  vectors = [
      torch.tensor(batch.vectors[k], requires_grad=True)
      for k in ('query', 'passage')
  ]
  parts = GlobalOrthogonalRegularizationLoss(
      None, lambda a, b: a @ b.T, loss.mean_weight, loss.second_moment_weight,
      aggregation='sum',
  ).compute_loss_from_embeddings(vectors)
  value = sum(parts.values())
  value.backward()
  gradients = (x.grad.numpy() for x in vectors)
  return value.item(), dict(zip(('query', 'passage'), gradients))


@pytest.mark.parametrize('partitioner', [
    pytest.param(None, id='one'),
    pytest.param(Partitioner(2), id='mesh', marks=pytest.mark.nightly),
])
def test_value_and_gradients(partitioner):
  similarity = Similarity(LearnableTemperature(0.1), implementation='ring')
  softmax = InBatchSoftmax()
  losses = {k: (loss, similarity) for k, loss in LOSSES.items()}
  losses['softmax'] = softmax, similarity
  parts = (softmax, 0.5), (LOSSES['both'], 2.0)
  losses['sum'] = Sum(parts), similarity
  program = meshes.on_mesh(partitioner, loss_cases.values_and_gradients(losses))
  embeddings, batch = loss_cases.make_batch(24, 1, duplicates=True, lean=2.0)
  ones = np.ones(24, np.float32)

  def run(weights):
    weighed = embeddings._replace(columns={'weights': weights})
    return jax.device_get(program({'log_temperature': -2.0}, weighed))

  got = run(ones)
  for name, loss in LOSSES.items():
    (value, metrics), (params, vectors) = got[name]
    want, gradients = theirs(batch, loss)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    assert params['log_temperature'] == 0 and not vectors.pop('negatives').any()
    loss_cases.assert_gradients_close(vectors, gradients, 2e-6)
  values = {name: result[0][0] for name, result in got.items()}
  np.testing.assert_allclose(
      values['sum'], 0.5 * values['softmax'] + 2 * values['both'], rtol=1e-6
  )

  weights = np.arange(24, dtype=np.float32)
  moments = []
  for k in ('query', 'passage'):
    cosines = batch.vectors[k] @ batch.vectors[k].T
    np.fill_diagonal(cosines, 0.0)
    share = weights / weights.sum() / 23
    moments.append([share @ cosines.sum(1), share @ (cosines**2).sum(1)])
  (value, metrics), _ = run(weights)['both']
  np.testing.assert_allclose(
      value, sum(a**2 + b - 1 / 16 for a, b in moments), rtol=1e-6
  )
  for k, (_, second) in zip(('query', 'passage'), moments):
    np.testing.assert_allclose(metrics[f'{k}_second_moment'], second, rtol=1e-6)


def test_what_is_spread_out_has_no_loss():
  apart = np.eye(16, dtype=np.float32)
  embeddings, _ = loss_cases.make_batch(16, 0)
  embeddings = embeddings._replace(query=apart, passage=apart)
  value, gradients = jax.value_and_grad(
      lambda x: SpreadOut()({}, embeddings._replace(query=x), None)[0]
  )(apart)
  assert value == 0 and not gradients.any()
  single = jax.tree.map(lambda x: x[:1], embeddings)
  assert SpreadOut()({}, single, None)[0] == 0


def test_bad_weights_are_refused():
  for weights in ((0.0, 0.0), (-1.0, 2.0)):
    with pytest.raises(UserError, match='0 or more, one of them above 0'):
      SpreadOut(*weights)
