"""A step against a negative cache: value, gradient, what is kept; NumPy's."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import text_reading
import tiny_training

from dualenc_jax.data import layouts
from dualenc_jax.losses import LearnableTemperature, negative_cache, Similarity
from dualenc_jax.models import model_params
from dualenc_jax.objectives import CachedNegatives
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

SIZE, LENGTH, TEMPERATURE = 40, 10, 0.2
BATCH = 8
LEARNT = Similarity(LearnableTemperature(TEMPERATURE))


def make_texts():
  """Tokens of queries and passages; every other query is its passage."""
  tokens = tiny_training.make_tokens(BATCH)
  query, passage = tokens['query_tokens'], tokens['passage_tokens']
  query = np.pad(query, ((0, 0), (0, LENGTH - query.shape[1])))
  query[::2] = passage[::2]
  return query, passage


def make_batch():
  """Pairs, each with one more passage that the cache has, too."""
  batch = tiny_training.make_batch(BATCH)
  query, _ = make_texts()
  others = (np.arange(BATCH) * 5 + 3) % SIZE
  return batch | {
      'queries': layouts.padded_rows(query[:, None]),
      'numbers': np.arange(BATCH, dtype=np.uint32),
      'positive_ids': ids_of(others)[:, None],
  }


def ids_of(numbers):
  """As `make_batch` has those of its passages, which come first."""
  return np.stack([numbers, numbers + 1000], axis=-1).astype(np.uint32)


def make_cache(params, model):
  """All texts of the batch, and others, embedded by these very parameters."""
  _, own = make_texts()
  others = tiny_training.make_tokens(SIZE, seed=1)['passage_tokens']
  tokens = np.concatenate([np.unique(own, axis=0), others])[:SIZE]
  vectors = jax.jit(lambda tokens: encode(model, params, 'passage', tokens))
  return negative_cache.NegativeCache(
      np.asarray(vectors(tokens)), tokens.astype(np.uint16),
      ids_of(np.arange(SIZE)), np.zeros(SIZE, np.int32),
  )


def encode(model, params, tower, tokens):
  variables = {'params': model_params(params)}
  return model.apply(variables, tokens, method=f'encode_{tower}')


def masked(cache, batch):
  """Which slots are no negatives of which query, by plain loops."""
  found = np.zeros((BATCH, SIZE), bool)
  for i in range(BATCH):
    known = {tuple(batch['passage_ids'][i])}
    known |= {tuple(ids) for ids in batch['positive_ids'][i]}
    for j in range(SIZE):
      found[i, j] = tuple(cache.ids[j]) in known
  return found


def dense(objective, params, batch, cache):
  """The softmax over the cache, all of it encoded now; and every score."""
  query, passage = make_texts()
  query = encode(objective.model, params, 'query', query)
  passage, vectors = (
      encode(objective.model, params, 'passage', tokens)
      for tokens in (passage, cache.tokens.astype(np.int32))
  )
  temperature = jnp.exp(params['loss']['log_temperature'])
  positive = jnp.sum(query * passage, axis=1) / temperature
  negatives = jnp.matmul(query, vectors.T, precision='highest') / temperature
  negatives = jnp.where(masked(cache, batch), -jnp.inf, negatives)
  margin = objective.similarity.false_negative_margin
  if margin is not None:
    limit = jax.lax.stop_gradient(positive + margin / temperature)
    negatives = jnp.where(negatives > limit[:, None], -jnp.inf, negatives)
  scores = jnp.concatenate([positive[:, None], negatives], axis=1)
  terms = jax.nn.logsumexp(scores, axis=1) - positive
  return jnp.mean(terms), scores


def case(similarity=LEARNT, **options):
  model = tiny_training.make_model()
  objective = CachedNegatives(model, SIZE, similarity, **options)
  params = tiny_training.init_params(model, similarity=similarity)
  return objective, params, make_cache(params, model), make_batch()


def flat(tree, *leading):
  """All numbers of a gradient, or of several at once, float64."""
  leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
  return np.concatenate([x.reshape(*leading, -1) for x in leaves], axis=-1)


@pytest.mark.nightly
def test_the_estimate_of_the_gradient_is_unbiased():
  similarity = Similarity(
      LearnableTemperature(TEMPERATURE), false_negative_margin=0.02
  )
  objective, params, cache, batch = case(similarity)
  exact = jax.jit(jax.grad(lambda p: dense(objective, p, batch, cache)[0]))
  exact = jax.device_get(exact(params))

  @jax.jit
  def estimates(keys):
    def of_key(key):
      gradient = jax.grad(lambda p: objective.step(p, cache, batch, key)[0])
      return gradient(params)

    return jax.lax.map(of_key, keys, batch_size=25)

  count, sums, squares, slopes = 600, 0.0, 0.0, []
  for keys in jax.random.split(jax.random.key(0), (12, count // 12)):
    found = jax.device_get(estimates(keys))
    rows = flat(found, len(keys))
    sums, squares = sums + rows.sum(axis=0), squares + (rows**2).sum(axis=0)
    slopes.extend(found['loss']['log_temperature'].tolist())
  mean = sums / count
  error = np.sqrt((squares / count - mean**2) / count)
  away = np.linalg.norm(mean - flat(exact))
  # Three standard errors of the norm, which are a small part of it.
  assert away < 3 * np.linalg.norm(error)
  assert 3 * np.linalg.norm(error) < 0.25 * np.linalg.norm(flat(exact))
  # Of other weights of the draws, or none, it is told.
  assert np.linalg.norm(mean - 1.3 * flat(exact)) > 3 * np.linalg.norm(error)
  slope = exact['loss']['log_temperature']
  off = np.std(slopes) / math.sqrt(count)
  assert 0 < abs(np.mean(slopes) - slope) < 3 * off


def test_the_loss_is_that_of_the_whole_cache():
  objective, params, cache, batch = case()
  _, scores = jax.jit(lambda p: dense(objective, p, batch, cache))(params)
  scores = np.asarray(scores, np.float64)
  for top_k in (6, None):
    step = jax.jit(dataclasses.replace(objective, top_k=top_k).step)
    value, metrics, _ = step(params, cache, batch, jax.random.key(0))
    negatives = -np.sort(-scores[:, 1:], axis=1)[:, :top_k]
    kept = np.concatenate([scores[:, :1], negatives], axis=1)
    terms = scipy.special.logsumexp(kept, axis=1) - kept[:, 0]
    assert metrics['loss'] == pytest.approx(terms.mean(), rel=1e-5)
    assert value == metrics['loss']
  first = scores[:, 0] > scores[:, 1:].max(axis=1)
  assert BATCH / 2 <= first.sum() < BATCH
  assert metrics['accuracy'] == pytest.approx(first.mean())
  assert metrics['staleness'] < 1e-10
  hidden = masked(cache, batch).mean()
  assert metrics['masked_fraction'] == pytest.approx(hidden, rel=1e-5)


def test_of_several_that_are_drawn_the_softmax_is_exact():
  """As many are drawn as there are negatives: the softmax over all of them."""
  objective, params, cache, batch = case(sampled=SIZE)

  def loss(params):
    return objective.step(params, cache, batch, jax.random.key(0))[0]

  value, gradient = jax.jit(jax.value_and_grad(loss))(params)
  exact = jax.jit(
      jax.value_and_grad(lambda p: dense(objective, p, batch, cache)[0])
  )
  expected, of_dense = exact(params)
  assert value == pytest.approx(float(expected), rel=1e-5)
  gradient, of_dense = flat(gradient), flat(of_dense)
  assert np.linalg.norm(gradient - of_dense) < 1e-4 * np.linalg.norm(of_dense)


def test_what_a_step_leaves_in_the_cache():
  objective, params, cache, batch = case(refresh=0.19)
  model = objective.model
  # All is stale, and the batch's texts are not in it.
  cache = cache._replace(
      embeddings=-cache.embeddings, ids=cache.ids + np.uint32(5000),
      age=np.arange(SIZE, dtype=np.int32),
  )
  _, metrics, after = jax.jit(objective.step)(
      params, cache, batch, jax.random.key(0)
  )
  after = jax.device_get(after)
  vectors = jax.jit(lambda tokens: encode(model, params, 'passage', tokens))
  fresh = np.asarray(vectors(after.tokens.astype(np.int32)))
  new = {tuple(ids): i for i, ids in enumerate(after.ids)}
  _, tokens = make_texts()
  for ids, text in zip(batch['passage_ids'], tokens):
    slot = new[tuple(ids)]
    np.testing.assert_array_equal(after.tokens[slot], text)
    assert after.age[slot] == 0
  known = np.linalg.norm(after.embeddings - fresh, axis=1) < 1e-5
  young = after.age == 0
  np.testing.assert_array_equal(known, young)
  different = len(np.unique(tokens, axis=0))
  assert different < BATCH
  # The oldest, of 7.6 slots 8, were encoded again; other slots made way.
  old = range(SIZE - 8, SIZE)
  assert all(young[slot] for slot in old)
  np.testing.assert_array_equal(after.ids[[*old]], cache.ids[[*old]])
  assert 8 + different < young.sum() <= 8 + different + BATCH
  assert metrics['staleness'] == pytest.approx(4, rel=1e-4)


class Run(types.SimpleNamespace):
  """What `init_extra_state` asks of a run."""

  tokenizer = types.SimpleNamespace(
      passage_length=LENGTH, vocabulary=types.SimpleNamespace(size=64)
  )


def test_at_first_the_cache_is_what_the_tower_makes_of_some_passages():
  model, partitioner = tiny_training.make_model(dropout_rate=0.3), Partitioner()
  params = jax.device_put(
      tiny_training.init_params(model), partitioner.replicated
  )
  texts = text_reading.random_cache(64, 0, 6, LENGTH, vocab=64)
  objective = CachedNegatives(model, SIZE)
  first, other = (
      jax.device_get(
          objective.init_extra_state(
              Run(caches=[texts], seed=seed, partitioner=partitioner), params
          )
      )
      for seed in (0, 1)
  )
  assert (first.ids != other.ids).any()
  assert not first.age.any()
  assert first.tokens.dtype == np.uint16
  assert len(np.unique(first.ids, axis=0)) == SIZE
  known = {
      tuple(row): int(print_)
      for name in ('passage', 'negative')
      for row, print_ in zip(
          getattr(texts, f'{name}_tokens').padded(
              np.arange(len(getattr(texts, f'{name}_tokens'))), LENGTH
          ).tolist(),
          getattr(texts, f'{name}_fingerprints'),
      )
  }
  for row, (low, high) in zip(first.tokens.tolist(), first.ids.tolist()):
    assert known[tuple(row)] == low + (high << 32)
  embed = jax.jit(lambda tokens: encode(model, params, 'passage', tokens))
  np.testing.assert_allclose(
      first.embeddings, embed(first.tokens.astype(np.int32)), atol=1e-5
  )


@pytest.mark.parametrize(
    'options, expected',
    [({}, SIZE), ({'top_k': 8}, 8), ({'sampled': 3, 'top_k': 8}, 3)], ids=str,
)
def test_chance(options, expected):
  objective = CachedNegatives(tiny_training.make_model(), SIZE, **options)
  assert objective.chance(None) == pytest.approx(math.log(1 + expected))


def test_what_cannot_be():
  model = tiny_training.make_model()
  with pytest.raises(UserError, match='mask_duplicates is False: a cache'):
    CachedNegatives(model, SIZE, Similarity(mask_duplicates=False))
  with pytest.raises(UserError, match='SAMPLED.* is 9; expected 1 to 8'):
    CachedNegatives(model, SIZE, sampled=9, top_k=8)
