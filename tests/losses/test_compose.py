"""Sums of losses and wrappers over them, against float64 NumPy."""

import dataclasses
import functools

import jax
from jax.experimental.compilation_cache import compilation_cache
from loss_cases import (
  assert_gradients_close,
  jit,
  make_batch,
  values_and_gradients,
)
import meshes
import numpy as np
import pytest
import reference
import tiny_training

from dualenc_jax import losses
from dualenc_jax.errors import UserError
from dualenc_jax.losses import (
  AtTemperature,
  Matryoshka,
  PAIR,
  SamToNe,
  Similarity,
  Sum,
)
from dualenc_jax.objectives import contrastive
from dualenc_jax.parallel import partitioning
from dualenc_jax.training import Partitioner

LEARNT = losses.LearnableTemperature(0.1)
TOWERS = ('query', 'passage', 'negatives')
DIMS = {4: 0.4, 16: 0.6}
SAMTONE = functools.partial(
    reference.samtone_terms, mask=True, bidirectional=True
)
PAIR_TERMS = functools.partial(
    reference.pair_terms, mask=True, bidirectional=True, alpha=0.1,
    positive=True, queries=False,
)


def weighted(*results):
  """The sum of (weight, Result) by hand; the last has its own temperature."""
  gradients = {k: sum(w * r.gradients[k] for w, r in results) for k in TOWERS}
  return reference.Result(sum(w * r.value for w, r in results), gradients)


@functools.cache
def embedded():
  """Embeddings of a tiny batch, and the way back to the parameters."""
  model = tiny_training.make_model(num_layers=1)
  batch = tiny_training.make_batch(16, num_negatives=2)
  params = tiny_training.init_params(model, LOSS, SIMILARITY)

  def vectors(params):
    embeddings = contrastive.embed(model, params, batch)
    return {k: getattr(embeddings, k) for k in TOWERS}, embeddings

  return model, batch, params, jax.vjp(jax.jit(vectors), params, has_aux=True)


@pytest.fixture(autouse=True)
def without_kept_programs():
  """Compiles afresh.

  Of a program with several rings that comes from JAX's folder of compiled
  programs, XLA's CPU client (jaxlib 0.10.2) runs permutes of two rings at once
  under one key: numbers are mixed up, or the process aborts.
  """
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()
  yield
  jax.config.update('jax_enable_compilation_cache', True)
  compilation_cache.reset_cache()


LOSS = Sum((
    (Matryoshka(SamToNe(), (*DIMS,), (*DIMS.values(),)), 0.7),
    (AtTemperature(PAIR(), 0.2), 0.3),
))
SIMILARITY = Similarity(LEARNT, tile=3)


def as_reference(embeddings):
  def ids(words):
    words = np.asarray(words, np.int64).reshape(-1, 2)
    return words[:, 0] + (words[:, 1] << 32)

  return reference.Batch(
      {
          k: np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for k in TOWERS
          for x in [getattr(embeddings, k)]
      },
      {
          'query': ids(embeddings.query_ids),
          'passage': ids(embeddings.passage_ids),
          'negatives': ids(embeddings.negative_ids),
      },
      np.asarray(embeddings.negative_valid).reshape(-1),
  )


@functools.cache
def expected():
  """The loss and the gradients of all parameters, by float64 vectors."""
  _, _, _, (_, pull_back, embeddings) = embedded()
  batch = as_reference(embeddings)
  first = reference.matryoshka(batch, SAMTONE, reference.Options(0.1), DIMS)
  second = reference.evaluate(batch, PAIR_TERMS(batch), reference.Options(0.2))
  want = weighted((0.7, first), (0.3, second))
  (gradients,) = pull_back({
      k: want.gradients[k].reshape(getattr(embeddings, k).shape).astype('f4')
      for k in TOWERS
  })
  slope = np.float32(0.7 * first.gradients['log_temperature'])
  return want.value, {**gradients, 'loss': {'log_temperature': slope}}


@pytest.mark.slow
@pytest.mark.parametrize('micro_batch_size', [None, 8])
@pytest.mark.parametrize('implementation', ['dense', 'ring'])
def test_a_wrapper_and_a_sum_in_the_train_step(
    implementation, micro_batch_size
):
  model, batch, params, _ = embedded()
  partitioner = Partitioner(2)
  abstract, _, step = tiny_training.plan(
      partitioner, model=model, loss=LOSS,
      similarity=dataclasses.replace(SIMILARITY, implementation=implementation),
      micro_batch_size=micro_batch_size,
  )
  state = tiny_training.make_state(abstract, params=params)
  state, metrics = step(state, partitioner.to_device(batch))
  value, gradients = expected()
  np.testing.assert_allclose(metrics['loss'], value, rtol=2e-6)
  for path, got, want in zip(
      partitioning.leaf_paths(gradients),
      jax.tree.leaves(state.opt_state[0].trace), jax.tree.leaves(gradients),
      strict=True,
  ):
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < 1e-5, f'{path}: {error:.2e}'


@pytest.mark.parametrize('implementation', ['dense', 'ring'])
def test_a_sum_is_that_of_its_parts(implementation):
  similarity = Similarity(LEARNT, implementation, tile=3)
  both = ((SamToNe(), 0.7), (PAIR(), 0.3))
  cases = {
      'part': SamToNe(),
      'one': Sum(((SamToNe(), 1.0),)),
      'both': Sum(both),
      'nested': Sum(((Sum(both[:1]), 1.0), both[1])),
  }
  program = meshes.on_mesh(
      meshes.SmallPartitioner(devices=2),
      values_and_gradients({k: (x, similarity) for k, x in cases.items()}),
  )
  embeddings, batch = make_batch(6, 2, duplicates=True)
  got = jax.device_get(program(LEARNT.init(), embeddings))
  for a, b in zip(
      *(jax.tree.leaves((got[k][0][0], got[k][1])) for k in ('part', 'one')),
      strict=True,
  ):
    np.testing.assert_array_equal(a, b)

  parts = [
      reference.evaluate(batch, terms(batch), reference.Options(0.1))
      for terms in (SAMTONE, PAIR_TERMS)
  ]
  want = weighted((0.7, parts[0]), (0.3, parts[1]))
  for name in ('both', 'nested'):
    (value, _), (_, gradients) = got[name]
    np.testing.assert_allclose(value, want.value, rtol=1e-6)
    assert_gradients_close(gradients, want.gradients)
  metrics = got['both'][0][1]
  np.testing.assert_allclose(metrics['SamToNe/loss'], parts[0].value, rtol=1e-6)
  np.testing.assert_allclose(metrics['PAIR/loss'], parts[1].value, rtol=1e-6)
  # What any batch has, and what the first part has that is no loss.
  assert metrics['accuracy'] == metrics['SamToNe/accuracy']
  assert {'temperature', 'positive_similarity'} < metrics.keys()
  assert 'query_side_loss' not in metrics
  assert 'Sum/SamToNe/query_side_loss' in got['nested'][0][1]


def test_parameters_of_parts_have_their_names():
  own = AtTemperature(PAIR(), losses.LearnableTemperature(0.2))
  loss = Sum(((SamToNe(), 1.0), (own, 1.0), (own, 0.5)))
  params = losses.init(loss, Similarity(LEARNT))
  assert partitioning.leaf_paths(params) == [
      'AtTemperature_2/log_temperature',
      'AtTemperature_3/log_temperature',
      'log_temperature',
  ]
  embeddings, _ = make_batch(6, 0)
  function = jit(values_and_gradients({0: (loss, Similarity(LEARNT))}))
  (_, metrics), (gradients, _) = function(params, embeddings)[0]
  np.testing.assert_allclose(metrics['temperature'], 0.1, rtol=1e-6)
  np.testing.assert_allclose(
      metrics['AtTemperature_3/temperature'], 0.2, rtol=1e-6
  )
  slopes = [gradients[f'AtTemperature_{i}']['log_temperature'] for i in (2, 3)]
  np.testing.assert_allclose(slopes[1], 0.5 * slopes[0], rtol=1e-5)
  with pytest.raises(UserError, match='AtTemperature and Sim.*log_temperature'):
    losses.init(own, Similarity(LEARNT))
