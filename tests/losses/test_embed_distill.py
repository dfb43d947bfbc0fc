"""Embedding matching, against sentence-transformers' EmbedDistillLoss."""

import types

import jax
import numpy as np
import pytest
from sentence_transformers.sentence_transformer import losses as theirs
import torch

from dualenc_jax import losses
from dualenc_jax.utils.errors import UserError

B, K, D, OF_TEACHER = 6, 2, 8, 12


def unit(rng, *shape):
  x = rng.normal(size=shape)
  return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def make_batch(dim=OF_TEACHER):
  rng = np.random.default_rng(0)
  shapes = {'query': (B,), 'passage': (B,), 'negatives': (B, K)}
  vectors = {name: unit(rng, *shape, D) for name, shape in shapes.items()}
  teacher = {name: unit(rng, *shape, dim) for name, shape in shapes.items()}
  return losses.Embeddings(**vectors, teacher=teacher)


def value_and_gradients(loss, params, batch):
  def value(params, vectors):
    with_vectors = batch._replace(**vectors)
    return losses.evaluate(loss, losses.Similarity(), params, with_vectors)

  function = jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))
  return function(params, batch.vectors())


def expected(metric, params, batch):
  """Value and gradients by PyTorch in float64, a column for each text."""
  model = types.SimpleNamespace(
      get_embedding_dimension=lambda: D, device='cpu'
  )
  mapped = OF_TEACHER if params else None
  loss = theirs.EmbedDistillLoss(model, metric, mapped).double()
  if params:
    with torch.no_grad():
      loss.projection.weight.copy_(torch.tensor(params['map_kernel'].T))
      loss.projection.bias.copy_(torch.tensor(params['map_bias']))
  vectors = {
      name: torch.tensor(x, dtype=torch.float64).requires_grad_()
      for name, x in batch.vectors().items()
  }

  def columns(of):
    return [of['query'], of['passage'], *of['negatives'].unbind(1)]

  teacher = {n: torch.tensor(x).double() for n, x in batch.teacher.items()}
  value = loss.compute_loss_from_embeddings(columns(vectors), columns(teacher))
  value.backward()
  gradients = {name: x.grad.numpy() for name, x in vectors.items()}
  if params:
    gradients['map_kernel'] = loss.projection.weight.grad.numpy().T
    gradients['map_bias'] = loss.projection.bias.grad.numpy()
  return value.item(), gradients


@pytest.mark.parametrize('metric', ['cosine', 'l2', 'mse'])
@pytest.mark.parametrize('dim', [D, OF_TEACHER])
def test_equals_sentence_transformers(metric, dim):
  batch, loss = make_batch(dim), losses.EmbedDistill(metric)
  params = jax.device_get(loss.init(losses.Dims(D, dim)))
  assert bool(params) == (dim != D)
  if params:
    # Lengths are kept at first.
    mapped = batch.query @ params['map_kernel']
    np.testing.assert_allclose(np.linalg.norm(mapped, axis=1), 1, rtol=1e-5)
    params['map_bias'] = np.linspace(-0.1, 0.1, dim, dtype=np.float32)
  (value, metrics), gradients = value_and_gradients(loss, params, batch)
  want, of_vectors = expected(metric, params, batch)
  assert value == pytest.approx(want, rel=1e-6)
  assert metrics['taught_fraction'] == 1
  found = {**gradients[0], **gradients[1]}
  assert found.keys() == of_vectors.keys()
  for name, gradient in found.items():
    scale = np.abs(of_vectors[name]).max()
    error = np.abs(gradient - of_vectors[name]).max()
    assert error < 1e-6 * scale, name


def test_texts_without_a_vector_do_not_count():
  batch, loss = make_batch(D), losses.EmbedDistill('l2')
  valid = np.ones((B, K), bool)
  valid[3, 1] = False
  weights = np.linspace(1, 2, B).astype(np.float32)
  teacher = {name: x.copy() for name, x in batch.teacher.items()}
  teacher['query'][1], teacher['negatives'][2, 0] = 0, 0
  # A student at its teacher has no gradient, and no NaN.
  student = {'query': batch.query.copy()}
  student['query'][0] = teacher['query'][0]
  batch = batch._replace(
      **student, negative_valid=valid, teacher=teacher,
      columns={'weights': weights},
  )
  (value, metrics), (_, gradients) = value_and_gradients(loss, {}, batch)
  total, weight = 0.0, 0.0
  for name, vectors in batch.vectors().items():
    distances = np.linalg.norm(vectors - teacher[name], axis=-1)
    counted = np.any(teacher[name] != 0, axis=-1)
    if name == 'negatives':
      counted &= valid
    share = counted.T * weights
    total += np.sum(share * distances.T)
    weight += np.sum(share)
  assert value == pytest.approx(total / weight, rel=1e-6)
  missing = weights[1] + weights[2]
  whole = weights.sum() * (2 + K) - weights[3]
  assert metrics['taught_fraction'] == pytest.approx(1 - missing / whole, 1e-6)
  assert not gradients['query'][:2].any()
  assert not gradients['negatives'][2, 0].any()
  assert all(np.isfinite(x).all() for x in gradients.values())


def test_beside_another_loss_and_what_it_lacks():
  batch = make_batch()
  both = losses.Sum((
      (losses.InBatchSoftmax(), 1.0), (losses.EmbedDistill(), 2.0),
  ))
  similarity = losses.Similarity(0.1, mask_duplicates=False)
  params = losses.init(both, similarity, losses.Dims(D, OF_TEACHER))
  assert set(params) == {'EmbedDistill'} and both.reads_vectors
  _, metrics = jax.eval_shape(
      lambda: losses.evaluate(both, similarity, params, batch)
  )
  assert 'EmbedDistill/teacher_cosine' in metrics
  whole = losses.Matryoshka(losses.EmbedDistill(), (D, D // 2))
  for loss, given, message in (
      (losses.EmbedDistill(), batch, 'of 8 components with vectors of 12'),
      (whole, make_batch(D), 'of 4 components.*outside of losses.Matryoshka'),
      (losses.EmbedDistill(), batch._replace(teacher={}), 'batch lacks. Give'),
      (
          losses.EmbedDistill(),
          batch._replace(teacher={'query': batch.teacher['query'][1:]}),
          r"teacher\['query'\] has the shape \(5, 12\); expected \(6, 12\)",
      ),
  ):
    with pytest.raises(UserError, match=message):
      losses.evaluate(loss, similarity, {}, given)
  with pytest.raises(UserError, match="'dot'; expected one of 'cosine', 'l2'"):
    losses.EmbedDistill('dot')
