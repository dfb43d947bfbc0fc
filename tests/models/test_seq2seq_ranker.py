"""The released rankers' form, against transformers."""

import functools

import jax
import numpy as np
import pytest
import tiny_t5
from tiny_t5 import logits_of, padded, texts, VERSIONS

from dualenc_jax.models import Seq2SeqRanker

TOKENS = (17, 58)


@pytest.fixture(scope='module', params=VERSIONS)
def pair(request):
  """transformers' model of random weights, ours, and its parameters."""
  theirs, parts, params = tiny_t5.make(request.param)
  return theirs, Seq2SeqRanker(*parts, TOKENS), params


@functools.partial(jax.jit, static_argnums=0)
def scores_of(model, params, *args):
  return model.apply({'params': params}, *args)


def test_scores_are_those_of_transformers(pair):
  theirs, ours, params = pair
  source = padded(texts())
  logits = logits_of(theirs, source, np.zeros((len(source), 1), int))[:, 0]
  for tokens, wanted in (
      (TOKENS, logits[:, TOKENS[0]] - logits[:, TOKENS[1]]),
      (TOKENS[:1], logits[:, TOKENS[0]]),
  ):
    found = scores_of(ours.clone(tokens=tokens), params, source)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert np.ptp(wanted) > 0.1


def test_packed_texts_have_the_scores_they_have_alone(pair):
  _, ours, params = pair
  rows = texts()
  alone = scores_of(ours, params, padded(rows))
  packed = padded([rows[0] + rows[1] + rows[3], rows[2] + rows[4]])
  lengths = np.array([
      [len(rows[i]) for i in (0, 1, 3)], [len(rows[2]), len(rows[4]), 0]
  ])
  found = np.asarray(scores_of(ours, params, packed, lengths))
  np.testing.assert_allclose(
      found.ravel()[:5], np.asarray(alone)[[0, 1, 3, 2, 4]], rtol=1e-5,
      atol=1e-5,
  )


def test_fresh_parameters_have_the_released_names(pair):
  _, ours, params = pair
  shapes = jax.tree.map(lambda x: x.shape, params)
  assert tiny_t5.fresh_shapes(ours) == shapes
