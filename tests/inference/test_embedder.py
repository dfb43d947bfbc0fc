"""Embedding many texts: against one text at a time, and on several meshes."""

import functools

from flax import linen as nn
import jax
import numpy as np
import pytest

from dualenc_jax import models
from dualenc_jax.data import Ragged
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

VOCAB = 64
# Wide enough that products of other shapes round in other ways.
WIDTH = 256
COUNT = 200
FSDP = (('embed', 'data'),)


class FewDevices(Partitioner):
  """The first `count` devices."""

  def __init__(self, count, model_parallel=1, rules=()):
    super().__init__(model_parallel, rules)
    object.__setattr__(self, 'count', count)

  @functools.cached_property
  def mesh(self):
    return jax.make_mesh(
        (self.count // self.model_parallel, self.model_parallel),
        ('data', 'model'),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[: self.count],
    )


@pytest.fixture(scope='module')
def texts():
  """Texts of 2 to 16 tokens."""
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(2.5, 0.7, COUNT).astype(int), 2, 16)
  return Ragged.from_rows(
      [rng.integers(2, VOCAB, n) for n in lengths], np.uint16
  )


def make_model(separate_towers):
  encoder = models.T5Encoder(1, 4, 64, 2 * WIDTH)
  own = {}
  if separate_towers:
    own = {
        'passage_token_embedder': models.TokenEmbedder(VOCAB, WIDTH),
        'passage_encoder': encoder.clone(),
    }
  return models.DualEncoder(
      models.TokenEmbedder(VOCAB, WIDTH), encoder, models.Projection(16), **own
  )


@functools.cache
def initial(separate_towers):
  """Parameters with their logical axes; host arrays."""
  tokens = np.ones((1, 8), np.int32)
  init = jax.jit(make_model(separate_towers).init)
  return jax.device_get(init(jax.random.key(0), tokens, tokens)['params'])


def make(partitioner, separate_towers=False):
  """An embedder, its parameters and the model."""
  model, boxed = make_model(separate_towers), initial(separate_towers)
  shardings = partitioner.param_shardings(boxed)
  return (
      Embedder(model, partitioner, shardings, 8),
      jax.device_put(nn.unbox(boxed), shardings),
      model,
  )


@pytest.fixture(scope='module')
def one_device():
  return make(FewDevices(1))


@pytest.fixture(scope='module')
def expected(texts, one_device):
  embedder, params, _ = one_device
  return embedder.passages(params, texts)


def test_an_embedding_is_that_of_the_text_alone(texts):
  embedder, params, model = make(FewDevices(2), separate_towers=True)
  rows = np.array([3, 89, 0, 41, 3, 7])

  def alone(method):
    encode = jax.jit(functools.partial(model.apply, method=method))
    return np.concatenate(
        [
            encode({'params': params}, tokens[None])
            for tokens in texts.padded(rows, 16)
        ]
    )

  queries = embedder.queries(params, texts, rows)
  assert queries.dtype == np.float32
  np.testing.assert_allclose(queries, alone('encode_query'), atol=1e-5)
  passages = embedder.passages(params, texts)
  assert passages.shape == (COUNT, 16)
  np.testing.assert_allclose(passages[rows], alone('encode_passage'), atol=1e-5)


@pytest.mark.parametrize('devices, rules', [(8, ()), (4, FSDP)])
def test_neither_devices_nor_fsdp_change_a_bit(texts, devices, rules, expected):
  embedder, params, _ = make(FewDevices(devices, rules=rules))
  if rules:
    assert params['projection']['kernel'].sharding.spec[0] == 'data'
  found = embedder.passages(params, texts)
  assert found.tobytes() == expected.tobytes()
  assert embedder.passages(params, texts).tobytes() == found.tobytes()


def test_towers_over_a_model_axis(texts, expected):
  embedder, params, _ = make(FewDevices(8, 4, FSDP))
  kernel = params['encoder']['layers_0']['mlp']['wo']['kernel']
  assert kernel.sharding.spec[0] == 'model'
  found = embedder.passages(params, texts)
  np.testing.assert_allclose(found, expected, atol=1e-5)
