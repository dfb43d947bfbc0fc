"""Layouts change no embedding, loss or gradient, on every mesh."""

import functools

import jax
import numpy as np
import pytest
import text_reading
import tiny_training

from dualenc_jax.data import Batches, Packed, Padded
from dualenc_jax.models import model_params
from dualenc_jax.objectives import encoding
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

SIZE, QUERY, PASSAGE, NEGATIVES = 32, 12, 40, 3
FSDP = (('embed', 'data'),)
PACKED = Packed()


@functools.cache
def make_cache():
  return text_reading.random_cache(
      96, 0, QUERY, PASSAGE, vocab=tiny_training.VOCAB
  )


def make_batches(layout, cells=1):
  return Batches(
      [make_cache()], SIZE, 0, QUERY, PASSAGE, NEGATIVES, layout=layout,
      cells=cells,
  )


def make_model():
  return tiny_training.make_model(dropout_rate=0.2)


def make_params():
  """With large position biases, so that attending too far would show."""
  params = tiny_training.init_params(make_model())
  biases = params['encoder']['relpos_bias']
  biases['rel_embedding'] = 10 * biases['rel_embedding']
  return params


@functools.partial(jax.jit, static_argnames=('model', 'micro'))
def embed(params, batch, model, micro):
  return encoding.embed(model, params, batch, None, micro)


def by_number(embeddings, batch):
  """The vectors in the order of the step, those of missing negatives zero."""
  order = np.argsort(batch['numbers'])
  valid = embeddings.negative_valid[:, :, None]
  return {
      'query': np.asarray(embeddings.query)[order],
      'passage': np.asarray(embeddings.passage)[order],
      'negatives': np.where(valid, embeddings.negatives, 0)[order],
  }


@pytest.mark.parametrize(
    'layout, cells, micro', [(PACKED, 4, None), (PACKED, 8, 8)], ids=repr
)
def test_embeddings_equal_each_text_alone(layout, cells, micro):
  """Against `encode_query` and `encode_passage` of a text at a time."""
  model, params = make_model(), make_params()
  batch = make_batches(layout, cells)(1)
  found = by_number(embed(params, batch, model, micro), batch)

  def alone(texts, length, method):
    tokens = np.zeros((len(texts), length), np.int32)
    for row, text in zip(tokens, texts):
      row[: len(text)] = text
    variables = {'params': model_params(params)}
    apply = jax.jit(model.apply, static_argnames='method')
    return apply(variables, tokens, method=method)

  pairs = text_reading.pairs_of(batch, NEGATIVES)
  pairs.sort(key=lambda pair: pair[3])
  queries, passages, negatives, _ = zip(*pairs)
  for name, want in (
      ('query', alone(queries, QUERY, 'encode_query')),
      ('passage', alone(passages, PASSAGE, 'encode_passage')),
      ('negatives', alone(sum(negatives, []), PASSAGE, 'encode_passage')),
  ):
    np.testing.assert_allclose(
        found[name].reshape(want.shape), want, atol=1e-5, rtol=0
    )


def one_step(partitioner, layout, micro):
  cells = partitioner.mesh.shape['data'] * (SIZE // (micro or SIZE))
  abstract, _, step, _ = tiny_training.plan(
      partitioner, model=make_model(), micro_batch_size=micro
  )
  state = tiny_training.make_state(abstract, params=make_params())
  batch = make_batches(layout, cells)(0)
  state, metrics = step(state, partitioner.to_device(batch))
  return float(metrics['loss']), jax.device_get(state.opt_state[0].trace)


@pytest.mark.nightly
def test_loss_and_gradients_equal_the_padded_ones():
  """Packed, in micro-batches, on a mesh with FSDP: as padded on one device."""
  loss, gradients = one_step(Partitioner(2, FSDP), PACKED, 8)
  want_loss, want = one_step(tiny_training.OneDevice(), Padded(), None)
  # Sums over texts and devices run in another order; the loss divides by 0.1.
  np.testing.assert_allclose(loss, want_loss, rtol=2e-6)
  tiny_training.assert_gradients_near(gradients, want)
