"""Losses over lists, against PyTorch's in float64, list by list."""

import jax
import numpy as np
import pytest
import torch

from dualenc_jax.losses import Lists, lists, Listwise, Pairwise, Pointwise

B, G = 7, 5
functional = torch.nn.functional


def pointwise(f):
  labels = torch.zeros_like(f)
  labels[0] = 1
  return functional.binary_cross_entropy_with_logits(f, labels)


def listwise(f):
  return functional.cross_entropy(f[None], torch.tensor([0]))


def poly(f):
  return listwise(f) + 0.7 * (1 - torch.softmax(f, 0)[0])


def pairwise(f):
  return functional.soft_margin_loss(
      f[0] - f[1:], torch.ones_like(f[1:]), reduction='sum'
  )


LOSSES = {
    'pointwise': (Pointwise(), pointwise),
    'listwise': (Listwise(), listwise),
    'poly': (Listwise(0.7), poly),
    'pairwise': (Pairwise(), pairwise),
}


def make_lists(weighted):
  rng = np.random.default_rng(0)
  valid = rng.random((B, G)) < 0.7
  valid[:, 0] = True
  valid[0] = True
  valid[1, 1:] = False
  weights = rng.uniform(0, 2, B).astype(np.float32) if weighted else None
  scores = rng.normal(scale=4, size=(B, G)).astype(np.float32)
  return Lists(scores, valid, weights)


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('name', LOSSES)
def test_equals_pytorch(name, weighted):
  loss, reference = LOSSES[name]
  given = make_lists(weighted)
  scores = torch.tensor(given.scores, dtype=torch.float64).requires_grad_()
  weights = np.ones(B) if given.weights is None else given.weights
  total = sum(
      float(w) * reference(own[torch.tensor(valid)])
      for own, valid, w in zip(scores, given.valid, weights)
  ) / float(np.sum(weights, dtype=np.float64))
  total.backward()

  def value(scores):
    return lists.evaluate(loss, given._replace(scores=scores))

  (found, metrics), gradient = jax.jit(
      jax.value_and_grad(value, has_aux=True)
  )(given.scores)
  assert float(found) == pytest.approx(float(total.detach()), rel=2e-6)
  wanted = scores.grad.numpy()
  np.testing.assert_allclose(gradient, wanted, atol=2e-6 * np.abs(wanted).max())
  best = [
      all(own[0] > s for s, v in zip(own[1:], valid[1:]) if v)
      for own, valid in zip(given.scores, given.valid)
  ]
  accuracy = np.sum(weights * np.array(best)) / np.sum(weights)
  assert float(metrics['accuracy']) == pytest.approx(accuracy, abs=1e-6)
  assert metrics['loss'] == found
