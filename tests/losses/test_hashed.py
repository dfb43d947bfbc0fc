"""BPR's loss against float64 NumPy, pair by pair, dense and by the ring."""

import dataclasses
import functools

import differences
import jax
import loss_cases
import meshes
import numpy as np
import pytest
import reference

from dualenc_jax.losses import (
  AtTemperature,
  evaluate,
  Hashed,
  MarginMSE,
  SamToNe,
  Similarity,
)

pytestmark = pytest.mark.devices(8)

TEMPERATURE, STEP = 0.2, 7
# beta of step 7 with the defaults.
BETA = 1.7**0.5


def negatives_of(batch, mask=True):
  """bool [B, B] and [B, B K]: which passages are a query's negatives."""
  size, hard = len(batch.ids['query']), len(batch.ids['negatives'])
  found = np.zeros((size, size), bool), np.zeros((size, hard), bool)
  for (_, i), _, negatives in reference.query_side(batch, mask):
    for tower, j in negatives:
      found[tower == 'negatives'][i, j] = True
  return found


def softmax_part(e, h, masks, weights, temperature=TEMPERATURE):
  """Two-way softmax of dense queries and hashed passages, equally scaled."""
  scale = temperature * np.sqrt(e.shape[1])
  passages, hard = e @ h['passage'].T / scale, e @ h['negatives'].T / scale
  positive = np.diag(passages)
  of_query = np.exp(positive) + np.sum(np.exp(passages) * masks[0], axis=1)
  of_query += np.sum(np.exp(hard) * masks[1], axis=1)
  of_passage = np.exp(positive) + np.sum(np.exp(passages) * masks[0], axis=0)
  return np.sum(weights * (np.log(of_query * of_passage) - 2 * positive))


def margin_part(h, masks, weights, alpha, limit=np.inf):
  """The margin loss by two loops; scores above the limit are left out."""
  dim, total = h['query'].shape[1], 0.0
  candidates = np.concatenate([h['passage'], h['negatives']])
  masks = np.concatenate(masks, axis=1)
  for i, q in enumerate(h['query']):
    positive = q @ h['passage'][i]
    scores = candidates[masks[i]] @ q
    scores = scores[scores - positive <= dim * limit]
    hinges = [max(0.0, alpha - positive + score) for score in scores]
    total += weights[i] * np.mean(hinges) if hinges else 0.0
  return total


def slopes(function, vectors):
  return {
      name: differences.central(lambda x: function({**vectors, name: x}), x)
      for name, x in vectors.items()
  }


@dataclasses.dataclass
class Expected:
  dense: float
  candidate: float
  gradients: dict

  @property
  def value(self):
    return self.dense + self.candidate


def expected(batch, beta=BETA, alpha=2.0, weights=None, limit=np.inf,
             mask=True):
  """The loss and its gradient of the vectors, by the rule of the chain."""
  dim = batch.vectors['query'].shape[1]
  weights = np.ones(len(batch.ids['query'])) if weights is None else weights
  weights = weights / np.sum(weights)
  masks = negatives_of(batch, mask)
  soft = {k: np.tanh(beta * dim**0.5 * x) for k, x in batch.vectors.items()}

  def dense(h):
    return softmax_part(h['dense'], h, masks, weights)

  def candidate(h):
    return margin_part(h, masks, weights, alpha, limit)

  arrays = {**soft, 'dense': batch.vectors['query']}
  of_h = slopes(lambda h: dense(h) + candidate(h), arrays)
  gradients = {
      k: of_h[k] * beta * dim**0.5 * (1 - h**2) for k, h in soft.items()
  }
  gradients['query'] += of_h['dense']
  return Expected(dense(arrays), candidate(arrays), gradients)


def value_and_gradients(loss, batch, step=STEP, **options):
  """On one device without a mesh."""
  similarity = Similarity(**{'temperature': TEMPERATURE, **options})
  function = loss_cases.values_and_gradients({0: (loss, similarity)})
  batch = batch._replace(step=np.int32(step))
  result, (_, gradients) = jax.device_get(
      jax.jit(lambda batch: function({}, batch)[0])(batch)
  )
  return result, gradients


def value_of_loss(loss, batch, step=STEP, **options):
  """As above, without the gradients, which take as long to compile again."""
  similarity = Similarity(**{'temperature': TEMPERATURE, **options})
  batch = batch._replace(step=np.int32(step))
  return jax.device_get(
      jax.jit(functools.partial(evaluate, loss, similarity, {}))(batch)
  )


def check(got, want):
  (value, metrics), gradients = got
  np.testing.assert_allclose(value, want.value, rtol=2e-6)
  np.testing.assert_allclose(metrics['dense_loss'], want.dense, rtol=2e-6)
  np.testing.assert_allclose(
      metrics['candidate_loss'], want.candidate, rtol=2e-6
  )
  loss_cases.assert_gradients_close(gradients, want.gradients)


@functools.cache
def cases(num_negatives):
  """Batches without and with duplicates, and what is expected of them."""
  found = []
  for duplicates in (False, True):
    embeddings, batch = loss_cases.make_batch(8, num_negatives, duplicates)
    weights = np.float32([1, 2, 0.5, 1, 0, 3, 1, 1])
    embeddings = embeddings._replace(columns={'weights': weights})
    found.append((embeddings, expected(batch, weights=weights)))
  return found


@pytest.mark.parametrize(
    'devices, num_negatives, tile',
    [(2, 1, 3), pytest.param(8, 0, 2, marks=pytest.mark.nightly)],
)
def test_equals_the_reference_on_every_mesh(devices, num_negatives, tile):
  function = loss_cases.values_and_gradients({
      kind: (Hashed(), Similarity(TEMPERATURE, kind, tile))
      for kind in ('dense', 'ring')
  })
  program = meshes.on_mesh(
      meshes.SmallPartitioner(devices=devices),
      lambda step, batch: function({}, batch._replace(step=step)),
  )
  for embeddings, want in cases(num_negatives):
    for value, (_, gradients) in jax.device_get(
        program(np.int32(STEP), embeddings)
    ).values():
      check((value, gradients), want)


@pytest.mark.parametrize(
    'implementation, margin', [('ring', 0.1), ('dense', -0.5)]
)
def test_false_negatives_are_left_out_of_the_margin(implementation, margin):
  embeddings, batch = loss_cases.make_batch(8, 2, duplicates=True)
  h = {k: np.tanh(4 * BETA * x) for k, x in batch.vectors.items()}
  masks, weights = negatives_of(batch), np.ones(8) / 8
  want = margin_part(h, masks, weights, 6.0, margin)
  _, metrics = value_of_loss(
      Hashed(alpha=6.0), embeddings, implementation=implementation, tile=3,
      false_negative_margin=margin,
  )
  everything = margin_part(h, masks, weights, 6.0)
  assert want < 0.9 * everything
  # Of the last, what is within alpha of the positive is false, all of it.
  assert (want > 0) == (16 * -margin < 6.0)
  np.testing.assert_allclose(metrics['candidate_loss'], want, rtol=1e-5)
  assert metrics['false_negative_fraction'] > 0


def test_unmasked_and_annealed_from_a_start():
  embeddings, batch = loss_cases.make_batch(8, 1, duplicates=True)
  loss = Hashed(alpha=0.5, gamma=0.01, start=250)
  got = value_and_gradients(loss, embeddings, step=50, mask_duplicates=False)
  assert got[0][1]['beta'] == 2.0
  check(got, expected(batch, beta=2.0, alpha=0.5, mask=False))
  want = np.sqrt(1 + 0.01 * 12595)
  np.testing.assert_allclose(loss.beta(np.int32(12345)), want, rtol=1e-6)


def test_metrics_of_the_codes():
  embeddings, batch = loss_cases.make_batch(8, 1)
  # A bit that never changes, and one that is 0: as if above it.
  passage = embeddings.passage.copy()
  passage[:, 0], passage[:, 1] = 0.2, 0.0
  embeddings = embeddings._replace(passage=passage)
  _, metrics = value_of_loss(Hashed(), embeddings)
  q, p = embeddings.query >= 0, passage >= 0
  share = p.mean(axis=0)
  distances = np.array([[np.sum(a != b) for b in p] for a in q])
  h = np.tanh(4 * BETA * np.stack([embeddings.query, passage]))
  masks = negatives_of(batch)
  scores = [
      np.append(h[0, i] @ h[1, masks[0][i]].T, h[0, i] @ n[masks[1][i]].T)
      for n in [np.tanh(4 * BETA * batch.vectors['negatives'])]
      for i in range(8)
  ]
  inside = [np.mean(s > h[0, i] @ h[1, i] - 2) for i, s in enumerate(scores)]
  assert 0 < np.mean(inside) < 1
  want = {
      'bit_balance': 4 * np.mean(share * (1 - share)),
      'saturation': np.mean(np.abs(h) > 0.9),
      'positive_hamming': np.diag(distances).mean(),
      'negative_hamming': distances[~np.eye(8, dtype=bool)].mean(),
      'margin_violations': np.mean(inside),
      # Those of the embeddings, which are of norm one, whatever their codes.
      'positive_similarity': np.mean(np.sum(embeddings.query * passage, 1)),
  }
  for name, number in want.items():
    np.testing.assert_allclose(metrics[name], number, rtol=2e-6, err_msg=name)


def test_any_loss_is_that_of_hashed_passages():
  embeddings, _ = loss_cases.make_batch(8, 1)
  own = AtTemperature(SamToNe(both_towers=True), 0.5)
  value, metrics = value_of_loss(Hashed(own, alpha=1.0), embeddings)
  passages = {
      k: np.tanh(4 * BETA * getattr(embeddings, k)) / 4
      for k in ('passage', 'negatives')
  }
  want, _ = loss_cases.value_of(
      'samtone_both_towers', embeddings._replace(**passages), temperature=0.5
  )
  np.testing.assert_allclose(metrics['dense_loss'], want, rtol=2e-6)
  both = want + metrics['candidate_loss']
  np.testing.assert_allclose(value, both, rtol=2e-6)


def test_chance_is_the_loss_where_all_embeddings_are_one():
  embeddings, _ = loss_cases.make_batch(8, 1)
  same = embeddings.map_vectors(lambda x: np.full_like(x, 0.25))
  value, _ = value_of_loss(Hashed(), same)
  assert Hashed().chance(8, 1) == pytest.approx(float(value), rel=1e-5)
  assert Hashed(MarginMSE()).chance(8, 1) is None
