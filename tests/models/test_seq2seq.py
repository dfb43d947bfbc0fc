"""T5s that write, and those that rank: against transformers and themselves."""

import functools

import jax
import numpy as np
import pytest
import tiny_t5
from tiny_t5 import logits_of, padded, texts, VERSIONS, VOCAB

from dualenc_jax.models import Seq2Seq, Seq2SeqRanker

TOKENS = (17, 58)


@pytest.fixture(scope='module', params=VERSIONS)
def pair(request):
  """transformers' model of random weights, our parts, and their parameters."""
  return tiny_t5.make(request.param)


def shifted(targets):
  return np.concatenate([np.zeros_like(targets[:, :1]), targets[:, :-1]], 1)


def test_logits_are_those_of_transformers(pair):
  theirs, parts, params = pair
  ours = Seq2Seq(*parts)
  sources = padded(texts())
  targets = np.random.default_rng(1).integers(2, VOCAB, (len(sources), 40))
  wanted = logits_of(theirs, sources, shifted(targets))
  found = jax.jit(lambda *a: ours.apply({'params': params}, *a))(
      sources, targets.astype(np.int32)
  )
  np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize('pair', ['1.0'], indirect=True)
def test_steps_at_positions_of_their_own_give_the_same_logits(pair):
  _, parts, params = pair
  ours = Seq2Seq(*parts)
  sources, length, count = padded(texts()), 24, 3
  rng = np.random.default_rng(2)
  targets = rng.integers(2, VOCAB, (len(sources), count, length))
  apply = jax.jit(lambda *a: ours.apply({'params': params}, *a))
  wanted = np.stack(
      [apply(sources, targets[:, i].astype(np.int32)) for i in range(count)],
      axis=1,
  )
  inputs = np.stack([shifted(targets[:, i]) for i in range(count)], axis=1)
  # Target i starts i + row steps late, over what another one has left there.
  late = np.arange(len(sources))[:, None] + np.arange(count)

  def begin(module, sources):
    return module.start(sources, length, count), module.biases(length)

  def jitted(method):
    return jax.jit(lambda *a: ours.apply({'params': params}, *a, method=method))

  caches, biases = jitted(begin)(sources)
  step, mask, found = jitted('step'), (sources != 0)[:, None], []
  for now in range(length + late.max()):
    positions = np.where(now < late, now, now - late) % length
    tokens = np.take_along_axis(inputs, positions[:, :, None], 2)[:, :, 0]
    logits, caches = step(
        tokens.astype(np.int32), caches, positions.astype(np.int32), biases,
        mask,
    )
    found.append(logits)
  found = np.stack(found)
  for row, of_row in enumerate(late):
    for i, first in enumerate(of_row):
      np.testing.assert_allclose(
          found[first : first + length, row, i],
          wanted[row, i],
          atol=1e-5 * np.abs(wanted).max(),
      )


@pytest.mark.parametrize('pair', ['1.0'], indirect=True)
def test_packed_texts_have_the_logits_they_have_alone(pair):
  _, parts, params = pair
  ours = Seq2Seq(*parts)
  encoder, decoder = (
      part.clone(dropout_rate=0.3) for part in (ours.encoder, ours.decoder)
  )
  ours = ours.clone(encoder=encoder, decoder=decoder)
  rows, written = texts(), texts(1)[::-1]
  numbers = np.arange(5, dtype=np.uint32) + 7
  rngs = {'dropout': jax.random.key(3)}

  @jax.jit
  def run(*args):
    return ours.apply({'params': params}, *args, rngs=rngs)

  alone = np.asarray(run(padded(rows), padded(written), None, None, numbers))
  order = ((0, 1, 3), (2, 4, None))

  def lengths(of):
    return np.array([
        [0 if i is None else len(of[i]) for i in o] for o in order
    ])

  packed = [
      padded([sum((of[i] for i in o if i is not None), []) for o in order])
      for of in (rows, written)
  ]
  own = np.array([[0 if i is None else numbers[i] for i in o] for o in order])
  found = np.asarray(
      run(*packed, lengths(rows), lengths(written), own.astype(np.uint32))
  )
  for row, o in enumerate(order):
    start = 0
    for i in o:
      if i is not None:
        size = len(written[i])
        np.testing.assert_allclose(
            found[row, start : start + size], alone[i, :size], rtol=1e-4,
            atol=1e-4,
        )
        start += size
  other = run(padded(rows), padded(written), None, None, numbers + 1)
  assert np.abs(np.asarray(other) - alone).max() > 0.1


def test_fresh_parameters_have_the_released_names(pair):
  _, parts, params = pair
  ours = Seq2Seq(*parts)
  shapes = jax.tree.map(lambda x: x.shape, params)
  for model in (ours, Seq2SeqRanker(*parts, TOKENS)):
    assert tiny_t5.fresh_shapes(model) == shapes


@functools.partial(jax.jit, static_argnums=0)
def scores_of(model, params, *args):
  return model.apply({'params': params}, *args)


def test_scores_are_those_of_transformers(pair):
  theirs, parts, params = pair
  ours = Seq2SeqRanker(*parts, TOKENS)
  source = padded(texts())
  logits = logits_of(theirs, source, np.zeros((len(source), 1), int))[:, 0]
  for tokens, wanted in (
      (TOKENS, logits[:, TOKENS[0]] - logits[:, TOKENS[1]]),
      (TOKENS[:1], logits[:, TOKENS[0]]),
  ):
    found = scores_of(ours.clone(tokens=tokens), params, source)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert np.ptp(wanted) > 0.1
