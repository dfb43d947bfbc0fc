"""Training a generator: one value in every layout and on every mesh."""

import dataclasses
import types

import jax
import numpy as np
import pytest
import text_reading
import tiny_t5
import two_steps

from dualenc_jax.data import Batches, Packed, Padded
from dualenc_jax.models import Seq2Seq
from dualenc_jax.objectives import Generation
from dualenc_jax.retrieval.encoding.embedder import Likelihood
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

SIZE, QUERY, PASSAGE = 16, 8, 24


def make_cache():
  return text_reading.random_cache(
      64, 0, QUERY, PASSAGE, vocab=tiny_t5.VOCAB
  )


def make_batch(layout, cells=1, step=0):
  return Batches(
      [make_cache()], SIZE, 0, QUERY, PASSAGE, layout=layout, cells=cells,
      joint_rows=True,
  )(step)


def make_objective(parts, layout=Padded(), rate=0.0, **options):
  embedder, encoder, decoder = parts
  encoder, decoder = (
      part.clone(dropout_rate=rate) for part in (encoder, decoder)
  )
  return Generation(
      Seq2Seq(embedder, encoder, decoder), layout=layout, **options
  )


def softmax_losses(logits, targets, z_loss=0.0):
  """By the definition, in float64."""
  logits = np.asarray(logits, np.float64)
  top = logits.max(axis=-1, keepdims=True)
  log_z = np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)) + top
  found = np.take_along_axis(logits, targets[..., None], axis=-1)
  return (log_z - found + z_loss * log_z**2)[..., 0]


@pytest.mark.parametrize(
    'version, layout', [('1.0', Packed()), ('1.1', Padded())],
    ids=repr,
)
def test_the_loss_is_that_of_transformers(version, layout):
  """Of each pair alone, and weighted by pairs."""
  theirs, parts, params = tiny_t5.make(version)
  batch = make_batch(layout, 2)
  weights = np.random.default_rng(1).uniform(0, 2, SIZE).astype(np.float32)
  objective = make_objective(parts, layout, z_loss=0.01)
  evaluate = jax.jit(objective)
  sums = np.zeros((2, 3))
  for weight, (query, passage, _, _) in zip(
      weights, text_reading.pairs_of(batch)
  ):
    logits = tiny_t5.logits_of(
        theirs, np.array([passage]), np.array([[0, *query[:-1]]])
    )[0]
    query = np.array(query)
    own = np.array([
        softmax_losses(logits, query, 0.01).sum(),
        (logits.argmax(axis=-1) == query).sum(),
        len(query),
    ])
    sums += np.stack([own, weight * own])
  for given, wanted in zip(({}, {'weights': weights}), sums):
    loss, metrics = evaluate(params, {**batch, **given})
    np.testing.assert_allclose(loss, wanted[0] / wanted[2], rtol=1e-5)
    assert metrics['loss'] == loss
    np.testing.assert_allclose(
        metrics['token_accuracy'], wanted[1] / wanted[2], rtol=1e-5
    )
    np.testing.assert_allclose(metrics['tokens'], wanted[2], rtol=1e-5)


@pytest.mark.nightly
def test_a_step_is_one_on_a_mesh():
  _, parts, _ = tiny_t5.make('1.0')
  two_steps.assert_same(
      make_objective(parts, rate=0.2),
      make_objective(parts, Packed(), 0.2), 2, make_batch, SIZE, 1e-5,
  )


def test_likelihoods_are_those_of_transformers():
  theirs, parts, params = tiny_t5.make('1.1')
  objective, cache = make_objective(parts), make_cache()
  partitioner = Partitioner()
  sharding = jax.tree.map(lambda _: partitioner.replicated, params)
  placed = jax.device_put(params, sharding)
  measure = Likelihood.for_params(
      objective.model, placed, partitioner, 16, length=QUERY
  )
  pairs = np.array([[0, 5], [3, 3], [0, 1], [9, 60]])
  found, correct = measure(
      placed, cache.query_tokens, cache.passage_tokens, pairs
  )
  for i, (query, passage) in enumerate(pairs):
    target = cache.query_tokens.row(query).astype(np.int64)
    logits = tiny_t5.logits_of(
        theirs, cache.passage_tokens.row(passage)[None].astype(np.int64),
        np.array([[0, *target[:-1]]]),
    )[0]
    np.testing.assert_allclose(
        found[i], -softmax_losses(logits, target).sum(), rtol=1e-5
    )
    assert correct[i] == (logits.argmax(axis=-1) == target).sum()


def test_what_cannot_be():
  cache = text_reading.make_cache([[5, 1], []], [[6, 1], [7, 1]])
  run = types.SimpleNamespace(caches=[cache])
  parts = tiny_t5.make('1.0').parts
  objective = make_objective(parts)
  with pytest.raises(UserError, match='toy has passages without queries'):
    objective.batches(run)
  other = objective.model.clone(decoder=parts[2].clone(num_heads=3))
  with pytest.raises(UserError, match='decoder has 3 heads'):
    dataclasses.replace(objective, model=other).check_mesh(Partitioner(4))
