"""Embedding many texts: against one text at a time, and on several meshes."""

import functools

from flax import linen as nn
import jax
import numpy as np
import pytest

from dualenc_jax import models
from dualenc_jax.data import Ragged
from dualenc_jax.inference import towers as towers_lib
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.training import Partitioner

VOCAB = 64
# Wide enough that products of other shapes round in other ways.
WIDTH = 256
COUNT = 200


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
  """Texts of 2 to 24 tokens."""
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(2.5, 0.7, COUNT).astype(int), 2, 24)
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
      models.TokenEmbedder(VOCAB, WIDTH),
      encoder,
      models.Projection(16),
      **own,
  )


@functools.cache
def initial(separate_towers):
  """Parameters with their logical axes; host arrays."""
  tokens = np.ones((1, 8), np.int32)
  init = jax.jit(make_model(separate_towers).init)
  return jax.device_get(init(jax.random.key(0), tokens, tokens)['params'])


def make(partitioner, separate_towers=False, batch_size=8):
  """An embedder, its parameters and the model."""
  model, boxed = make_model(separate_towers), initial(separate_towers)
  shardings = partitioner.param_shardings(boxed)
  return (
      Embedder(model, partitioner, shardings, batch_size),
      jax.device_put(nn.unbox(boxed), shardings),
      model,
  )


def test_an_embedding_is_that_of_the_text_alone(texts):
  embedder, params, model = make(FewDevices(2), separate_towers=True)
  rows = np.array([3, 89, 0, 41, 3, 7])

  def alone(method):
    encode = jax.jit(functools.partial(model.apply, method=method))
    return np.concatenate(
        [
            encode({'params': params}, tokens[None])
            for tokens in texts.padded(rows, 24)
        ]
    )

  queries = embedder.queries(params, texts, rows)
  assert queries.dtype == np.float32
  np.testing.assert_allclose(queries, alone('encode_query'), atol=1e-5)
  passages = embedder.passages(params, texts)
  assert passages.shape == (COUNT, 16)
  np.testing.assert_allclose(
      passages[rows], alone('encode_passage'), atol=1e-5
  )


@pytest.mark.parametrize('devices', [2, 4, 8])
def test_the_number_of_devices_changes_no_bit(texts, devices, on_one_device):
  embedder, params, _ = make(FewDevices(devices))
  found = embedder.passages(params, texts)
  assert found.tobytes() == on_one_device.tobytes()
  assert embedder.passages(params, texts).tobytes() == found.tobytes()


def test_fsdp_changes_no_bit(texts, on_one_device):
  embedder, params, _ = make(FewDevices(4, rules=(('embed', 'data'),)))
  kernel = params['projection']['kernel']
  assert kernel.sharding.spec[0] == 'data'
  assert embedder.passages(params, texts).tobytes() == on_one_device.tobytes()


@pytest.mark.parametrize('rules', [(), (('embed', 'data'),)])
def test_towers_over_a_model_axis(texts, rules, on_one_device):
  embedder, params, _ = make(FewDevices(8, 4, rules))
  kernel = params['encoder']['layers_0']['mlp']['wo']['kernel']
  assert kernel.sharding.spec[0] == 'model'
  np.testing.assert_allclose(
      embedder.passages(params, texts), on_one_device, atol=1e-5
  )


@pytest.fixture(scope='module')
def on_one_device(texts):
  embedder, params, _ = make(FewDevices(1))
  return embedder.passages(params, texts)


def test_batches_hold_each_text_once_and_do_not_run_ahead(texts):
  embedder, params, _ = make(FewDevices(2), batch_size=4)

  class Counting(Ragged):
    taken = 0

    def padded(self, indices, length):
      Counting.taken += len(indices)
      return super().padded(indices, length)

  tokens = Counting(texts.values, texts.offsets)
  rows = np.arange(COUNT)[::-1]
  seen, most = [], (towers_lib.AHEAD + 1) * 2 * 4
  for positions, embeddings in embedder.batches(
      'encode_passage', params, tokens, rows
  ):
    assert embeddings.shape == (len(positions), 16)
    assert Counting.taken - len(seen) <= most
    seen += positions.tolist()
  assert sorted(seen) == list(range(COUNT))
  lengths = texts.lengths[rows[seen]]
  assert (np.diff(lengths) <= 0).all()


def test_no_text_at_all(texts):
  embedder, params, _ = make(FewDevices(1))
  none = embedder.queries(params, texts, np.array([], np.int64))
  assert none.shape == (0, 16)
