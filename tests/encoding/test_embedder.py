"""Embedding many texts: against one text at a time, and on several meshes."""

import functools

from flax import linen as nn
import jax
import numpy as np
import pytest
from small_mesh import SmallPartitioner

from dualenc_jax import models
from dualenc_jax.data import Ragged
from dualenc_jax.retrieval.encoding.embedder import Embedder

pytestmark = pytest.mark.devices(8)

VOCAB = 64
# Wide enough that products of other shapes round in other ways.
WIDTH = 256
COUNT = 200
FSDP = (('embed', 'data'),)


@pytest.fixture(scope='module')
def texts():
  """Texts of 2 to 16 tokens."""
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(2.5, 0.7, COUNT).astype(int), 2, 16)
  return Ragged.from_rows(
      [rng.integers(2, VOCAB, n) for n in lengths], np.uint16
  )


def make(devices, model_parallel=1, rules=()):
  """An embedder, its parameters and the model."""
  partitioner = SmallPartitioner(model_parallel, rules, devices)
  encoder = models.T5Encoder(1, 4, 64, 2 * WIDTH)
  model = models.DualEncoder(
      models.TokenEmbedder(VOCAB, WIDTH),
      encoder,
      models.Projection(16),
      passage_token_embedder=models.TokenEmbedder(VOCAB, WIDTH),
      passage_encoder=encoder.clone(),
  )
  tokens = np.ones((1, 8), np.int32)
  boxed = jax.jit(model.init)(jax.random.key(0), tokens, tokens)['params']
  shardings = partitioner.param_shardings(boxed)
  params = jax.device_put(nn.unbox(jax.device_get(boxed)), shardings)
  return Embedder(model, partitioner, shardings, 8), params, model


@pytest.fixture(scope='module')
def expected(texts):
  embedder, params, _ = make(1)
  return embedder.passages(params, texts)


def test_an_embedding_is_that_of_the_text_alone(texts):
  embedder, params, model = make(2)
  rows = np.array([3, 89, 0, 41, 3, 7])

  def alone(method):
    encode = jax.jit(functools.partial(model.apply, method=method))
    padded = texts.padded(rows, 16)
    return np.concatenate(
        [encode({'params': params}, tokens[None]) for tokens in padded]
    )

  queries = embedder.queries(params, texts, rows)
  assert queries.dtype == np.float32
  np.testing.assert_allclose(queries, alone('encode_query'), atol=1e-5)
  passages = embedder.passages(params, texts)
  assert passages.shape == (COUNT, 16)
  np.testing.assert_allclose(passages[rows], alone('encode_passage'), atol=1e-5)


def test_equal_models_share_a_program(texts):
  """Unless one has a list, as a gin file may give it, and no hash."""
  one, params, model = make(1)
  assert make(1)[0]._encode is one._encode
  listed = model.clone(encoder=model.encoder.clone(
      activations=list(model.encoder.activations)
  ))
  found = Embedder.for_params(listed, params, SmallPartitioner(1, (), 1), 8)
  assert found._encode is not one._encode
  np.testing.assert_array_equal(
      found.queries(params, texts, np.arange(2)),
      one.queries(params, texts, np.arange(2)),
  )
  assert jax.tree.structure(models.abstract_params(listed)) == (
      jax.tree.structure(models.abstract_params(model))
  )


@pytest.mark.parametrize('devices, rules', [(8, ()), (4, FSDP)])
def test_neither_devices_nor_fsdp_change_a_bit(texts, devices, rules, expected):
  embedder, params, _ = make(devices, rules=rules)
  if rules:
    assert params['projection']['kernel'].sharding.spec[0] == 'data'
  found = embedder.passages(params, texts)
  assert found.tobytes() == expected.tobytes()
  assert embedder.passages(params, texts).tobytes() == found.tobytes()


def test_towers_over_a_model_axis(texts, expected):
  embedder, params, _ = make(8, 4, FSDP)
  kernel = params['passage_encoder']['layers_0']['mlp']['wo']['kernel']
  assert kernel.sharding.spec[0] == 'model'
  found = embedder.passages(params, texts)
  np.testing.assert_allclose(found, expected, atol=1e-5)
