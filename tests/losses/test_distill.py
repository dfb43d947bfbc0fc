"""Distillation, against PyTorch's own losses in float64."""

import jax
import numpy as np
import pytest
import torch

from dualenc_jax import losses
from dualenc_jax.utils.errors import UserError

B, K, D = 6, 3, 8
TEMPERATURE, OF_TEACHER = 0.1, 2.0
LOSSES = {'Distill': losses.Distill, 'MarginMSE': losses.MarginMSE}


def make_batch(seed=0):
  """Lists of which some lack a score, a negative, or all of their scores."""
  rng = np.random.default_rng(seed)

  def unit(*shape):
    x = rng.normal(size=shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)

  scores = rng.normal(scale=5.0, size=(B, 1 + K)).astype(np.float32)
  valid = np.ones((B, K), bool)
  valid[1, 2] = False
  scores[2, 1] = np.nan
  scores[3, 0] = np.nan  # The passage has none: no list.
  scores[4, 1:] = np.nan  # Nothing to compare it with.
  weights = rng.uniform(0.5, 2.0, B).astype(np.float32)
  return losses.Embeddings(
      unit(B, D), unit(B, D), unit(B, K, D), negative_valid=valid,
      columns={'teacher_scores': scores, 'weights': weights},
  )


def expected(name, batch, teacher=lambda t: t):
  """Value and gradients of the vectors, by PyTorch, list by list."""
  vectors = {
      n: torch.tensor(getattr(batch, n), dtype=torch.float64).requires_grad_()
      for n in ('query', 'passage', 'negatives')
  }
  total, weight = 0.0, 0.0
  for i in (0, 1, 2, 5):
    t = torch.tensor(batch.columns['teacher_scores'][i], dtype=torch.float64)
    kept = ~torch.isnan(t)
    kept[1:] &= torch.tensor(batch.negative_valid[i])
    candidates = torch.cat(
        [vectors['passage'][i][None], vectors['negatives'][i]]
    )[kept]
    s = candidates @ vectors['query'][i] / TEMPERATURE
    t = teacher(t[kept]) / OF_TEACHER
    if name == 'Distill':
      value = torch.nn.functional.kl_div(
          s.log_softmax(0), t.log_softmax(0), reduction='sum', log_target=True
      )
    else:
      value = torch.nn.functional.mse_loss(s[0] - s[1:], t[0] - t[1:])
    total += float(batch.columns['weights'][i]) * value
    weight += float(batch.columns['weights'][i])
  (total / weight).backward()
  gradients = {n: x.grad.numpy() for n, x in vectors.items()}
  return float(total.detach()) / weight, gradients


def value_and_gradients(loss, batch):
  def value(vectors):
    similarity = losses.Similarity(TEMPERATURE)
    return losses.evaluate(loss, similarity, {}, batch._replace(**vectors))

  function = jax.jit(jax.value_and_grad(value, has_aux=True))
  (value, metrics), gradients = function(batch.vectors())
  return float(value), metrics, gradients


@pytest.mark.parametrize('name', LOSSES)
def test_equals_pytorch(name):
  batch = make_batch()
  loss = LOSSES[name](teacher_temperature=OF_TEACHER)
  value, metrics, gradients = value_and_gradients(loss, batch)
  want, of_vectors = expected(name, batch)
  assert value == pytest.approx(want, rel=2e-6)
  for n, gradient in gradients.items():
    scale = np.abs(of_vectors[n]).max()
    np.testing.assert_allclose(gradient, of_vectors[n], atol=2e-6 * scale)
  weights = batch.columns['weights']
  taught = weights[[0, 1, 2, 5]].sum() / weights.sum()
  assert metrics['taught_fraction'] == pytest.approx(taught, rel=1e-6)


def test_probabilities_are_taken_for_their_logits():
  batch = make_batch()
  scores = 1 / (1 + np.exp(-batch.columns['teacher_scores'] / 5))
  columns = {**batch.columns, 'teacher_scores': scores}
  batch = batch._replace(columns=columns)
  loss = losses.Distill('probabilities', OF_TEACHER)
  value, _, _ = value_and_gradients(loss, batch)
  want, _ = expected('Distill', batch, torch.logit)
  assert value == pytest.approx(want, rel=2e-6)


@pytest.mark.parametrize(
    'loss, columns, message',
    [
        (losses.Distill(), {}, "from a teacher's scores.*POSITIVE_SCORES_COL"),
        (losses.Distill(), [[3, 3], [1, 1]], 'same score, 3: flat labels'),
        (losses.Distill(), [[3, np.nan], [np.nan, 2]], 'none of the first 2'),
        (losses.Distill(), [[0.9, 0.1]], 'like probabilities.*, or cosines'),
        (losses.Distill('probabilities'), [[3, -1]], 'are not probabilities'),
        (losses.InBatchSoftmax(), [[3, -1]], 'InBatchSoftmax does not'),
        (
            losses.Sum((
                (losses.InBatchSoftmax(), 1.0),
                (losses.AtTemperature(losses.MarginMSE(), 0.1), 1.0),
            )),
            [[3, 3], [1, 1]], 'same score, 3: flat labels',
        ),
        (losses.Distill(), [[3, -1]], None),
        (losses.Distill('cosines'), [[0.9, 0.1]], None),
    ],
)
def test_what_teaches_nothing_is_refused(loss, columns, message):
  if columns:
    columns = {'teacher_scores': np.array(columns, np.float32)}
  if message is None:
    losses.validate_columns(loss, columns)
    return
  with pytest.raises(UserError, match=message):
    losses.validate_columns(loss, columns)
