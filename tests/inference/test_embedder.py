"""Embedding many texts: against one text at a time, and on several meshes."""

import functools

from flax import linen as nn
import jax
import numpy as np
import pytest

from dualenc_jax import models
from dualenc_jax.data import Ragged
from dualenc_jax.inference import embedder as embedder_lib
from dualenc_jax.inference.embedder import Chunk, cut, deal, Embedder, Shapes
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
  seen, most = [], (embedder_lib.AHEAD + 1) * 2 * 4
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


SHAPES = Shapes(max_tokens=2048, lengths=4)


@pytest.mark.parametrize('count', [0, 1, 2, 5, 16, 17, 700, 3001])
def test_chunks_hold_every_text_once_and_are_bounded(count):
  rng = np.random.default_rng(count)
  lengths = np.sort(rng.integers(1, 300, count))[::-1]
  chunks = list(cut(lengths, 64, SHAPES))
  places = [i for chunk in chunks for i in range(chunk.start, chunk.stop)]
  assert places == list(range(count))
  for chunk in chunks:
    assert chunk.length >= lengths[chunk.start]
    assert chunk.stop - chunk.start <= chunk.rows <= 64
    assert chunk.rows * chunk.length <= 2048
    # A set of a few texts takes a few rows.
    assert chunk.rows == 1 or chunk.rows < 2 * count
  # Texts are padded to a length that is too long only where there are few.
  padded = sum(chunk.rows * chunk.length for chunk in chunks)
  assert padded <= 1.15 * lengths.sum() + 8 * 2048


def test_small_sets_have_one_length():
  assert list(cut(np.array([7]), 256, SHAPES)) == [(0, 1, 1, 8)]
  assert list(cut(np.array([9, 9, 7]), 256, SHAPES)) == [(0, 3, 4, 16)]
  # Longer than a chunk.
  assert list(cut(np.array([5000, 20]), 256, SHAPES)) == [
      (0, 1, 1, 5120),
      (1, 2, 1, 5120),
  ]
  many = np.repeat([100, 10], 200)
  shapes = [(c.rows, c.length) for c in cut(many, 256, SHAPES)]
  assert shapes == [(16, 112)] * 13 + [(128, 16)] * 2


def test_devices_get_chunks_of_one_shape():
  a, b = [Chunk(i, i + 1, 1, 8) for i in range(5)], [Chunk(5, 6, 1, 16)]
  assert list(deal(a + b, 2)) == [a[:2], a[2:4], a[4:], b]
  assert list(deal(a + b, 8)) == [a, b]
  assert not list(deal([], 8))


def test_lengths_are_few_and_padding_is_bounded():
  lengths = [SHAPES.padded_length(n) for n in range(1, 513)]
  assert sorted(set(lengths)) == [
      *(8, 16, 24, 32, 40, 48, 56, 64),
      *(80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
  ]
  for n, padded in enumerate(lengths, start=1):
    assert n <= padded
    assert padded - n < max(8, padded / 5)
  finer = Shapes(2048, 8)
  assert [finer.padded_length(n) for n in (64, 65, 73, 129, 257)] == [
      *(64, 72, 80, 144, 288),
  ]


@pytest.mark.parametrize('shapes', [embedder_lib.CPU, embedder_lib.ACCELERATOR])
def test_a_text_without_tokens_takes_the_shortest_row(shapes):
  assert shapes.padded_length(0) == 8
