"""JPQ's step: loss, gradients and search, against NumPy in float64."""

from code_cases import DIM, embed, PARTS, start
import differences
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_mesh import SmallPartitioner
import tiny_training

from dualenc_jax.models import model_params
from dualenc_jax.objectives import JointPq
from dualenc_jax.retrieval.compression import Codec, codec as codec_lib
from dualenc_jax.retrieval.compression.quantisers import Signs
from dualenc_jax.training import Optimizer, step as step_lib
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

TEMPERATURE = 0.1


def case(folder, bits=3, rotated=True, **options):
  options = {'depth': 12, 'cut': 8, 'temperature': TEMPERATURE, **options}
  return start(JointPq, folder, bits, rotated, **options)


def reference(objective, query, codec, numbers, targets, valid):
  """The loss of each query by plain loops; what it has found, too."""
  rotated = query @ np.asarray(codec.get('matrix_0', np.eye(DIM)), np.float64).T

  def scores(centroids):
    vectors = [centroids[m][numbers[:, m]] for m in range(PARTS)]
    return rotated @ np.concatenate(vectors, axis=1).T

  def weight(rank):
    return 1 / rank if rank <= objective.cut else 0.0

  score = codec['score'].astype(np.float64)
  now = scores(score)
  losses, hits = [], []
  for q, own in enumerate(now):
    order = np.flatnonzero(valid)
    order = order[np.argsort(-own[order], kind='stable')][: objective.depth]
    relevant = dict.fromkeys(targets[q], objective.depth + 1)
    ranks = {row: rank for rank, row in enumerate(order, start=1)}
    relevant = {row: ranks.get(row, last) for row, last in relevant.items()}
    others = {row: rank for row, rank in ranks.items() if row not in relevant}
    terms = [
        np.logaddexp(0, (now[q, j] - now[q, i]) / objective.temperature)
        * abs(weight(b) - weight(a))
        for i, a in relevant.items()
        for j, b in others.items()
    ]
    losses.append(np.mean(terms) if terms else 0.0)
    hits.append((relevant, others))
  return np.array(losses), hits


@pytest.mark.parametrize(
    'bits, rotated, depth', [(8, False, 12), (3, True, 100)]
)
def test_the_loss_is_that_of_brute_force(tmp_path, bits, rotated, depth):
  objective, params, batch, numbers = case(tmp_path, bits, rotated, depth=depth)
  value, metrics = jax.jit(objective)(params, batch)
  losses, hits = reference(
      objective, embed(objective, params, batch), params['codec'], numbers,
      batch['targets'], batch['code_valid'],
  )
  assert value == pytest.approx(losses.mean(), rel=1e-5)
  assert metrics['loss'] == value
  best = np.array([min(own.values()) for own, _ in hits])
  assert (best <= depth).any()
  # Of a hundred hits all passages are some; else not all that are relevant.
  assert (best <= depth).all() == (depth == 100)
  assert metrics['found'] == pytest.approx(np.mean(best <= depth))
  mrr = np.where(best <= depth, 1 / best, 0).mean()
  assert metrics['mrr'] == pytest.approx(mrr, rel=1e-6)
  counts = [len(others) for _, others in hits]
  assert metrics['negatives'] == pytest.approx(np.mean(counts))
  several = [len(own) for own, _ in hits]
  assert {*several} == {1, 2, 3}


def test_gradients_are_those_of_finite_differences(tmp_path):
  """Of all centroids, and of the query tower by the chain rule."""
  objective, params, batch, numbers = case(tmp_path)
  found = jax.jit(jax.grad(lambda p: objective(p, batch)[0]))(params)
  query = embed(objective, params, batch)

  def loss(query, score):
    codec = {**params['codec'], 'score': score}
    return reference(
        objective, query, codec, numbers, batch['targets'], batch['code_valid']
    )[0].mean()

  score = params['codec']['score'].astype(np.float64)
  expected = differences.central(lambda x: loss(query, x), score)
  assert np.abs(expected).max() > 1e-3
  np.testing.assert_allclose(
      found['codec']['score'], expected, rtol=1e-3, atol=1e-6
  )
  of_query = differences.central(lambda x: loss(x, score), query)

  def towards(model_params):
    tokens = batch['queries'].tokens[:, 0]
    own = objective.model.apply(
        {'params': model_params}, tokens, method='encode_query'
    )
    return jnp.sum(own * of_query.astype(np.float32))

  chained = jax.jit(jax.grad(towards))(model_params(params))
  for name in ('token_embedder', 'encoder', 'projection'):
    pairs = zip(jax.tree.leaves(found[name]), jax.tree.leaves(chained[name]))
    for one, other in pairs:
      np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
  # What only assigns has none, nor have passages.
  assert not np.any(found['codec']['assign'])
  assert not any(map(np.any, jax.tree.leaves(found['passage_encoder'])))


def train(folder, devices, steps=3):
  """Losses, the state after some steps with dropout, and that before."""
  objective, params, batch, _ = case(folder)
  model = tiny_training.make_model(separate_towers=True, dropout_rate=0.1)
  objective = JointPq(
      model, objective.codec_from, objective.depth, TEMPERATURE,
      cut=objective.cut,
  )
  partitioner = SmallPartitioner(devices=devices)
  optimizer = Optimizer(optax.sgd(0.05), lambda step: 0.05)
  plan = step_lib.plan(objective, optimizer, partitioner, 0)
  state = tiny_training.make_state(plan.abstract, params=params)
  batch = jax.device_put(batch, partitioner.rows)
  losses = []
  for _ in range(steps):
    state, metrics = plan.train_step(state, batch)
    losses.append(float(metrics['loss']))
  return losses, jax.device_get(state), params


@pytest.mark.nightly
def test_eight_devices_train_as_one(tmp_path):
  """And what is frozen stays bit for bit."""
  one, state, before = train(tmp_path, 1)
  assert len({*one}) == 3
  after = state.params
  for part in ('passage_token_embedder', 'passage_encoder', 'projection'):
    jax.tree.map(np.testing.assert_array_equal, after[part], before[part])
  for name in ('assign', 'matrix_0'):
    np.testing.assert_array_equal(after['codec'][name], before['codec'][name])
  for name in ('token_embedder', 'encoder'):
    old, new = (jax.tree.leaves(x[name]) for x in (before, after))
    assert all(np.any(a != b) for a, b in zip(old, new))
  assert np.any(after['codec']['score'] != before['codec']['score'])
  found, other, _ = train(tmp_path, 8)
  np.testing.assert_allclose(found, one, rtol=1e-5)
  np.testing.assert_allclose(
      other.params['codec']['score'], after['codec']['score'], atol=1e-6
  )


def test_what_cannot_be(tmp_path):
  with pytest.raises(UserError, match='JointPq trains the query tower alone'):
    JointPq(tiny_training.make_model())
  signs = Codec('sign', DIM, (), Signs(DIM))
  codec_lib.save(tmp_path / codec_lib.FILE, signs)
  model = tiny_training.make_model(separate_towers=True)
  with pytest.raises(UserError, match='with sign; expected the folder'):
    _ = JointPq(model, str(tmp_path)).frozen_passages.codec
