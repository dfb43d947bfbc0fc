"""The encoder against outputs that T5X wrote (tests/data/golden)."""

import json
import pathlib

from flax import linen as nn, traverse_util
import jax
import numpy as np
import pytest

from dualenc_jax.interop import t5x
from dualenc_jax.models import layers, t5_encoder

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'


class Golden:
  """One golden folder and the modules of its sizes."""

  def __init__(self, name: str):
    self.folder = GOLDEN / name
    self.config = json.loads((self.folder / 'config.json').read_text())
    self.reference = np.load(self.folder / 'reference.npz')
    self.token_embedder = layers.TokenEmbedder(
        self.config['vocab_size'], self.config['emb_dim']
    )
    self.encoder = t5_encoder.T5Encoder(
        num_layers=self.config['num_encoder_layers'],
        num_heads=self.config['num_heads'],
        head_dim=self.config['head_dim'],
        mlp_dim=self.config['mlp_dim'],
        activations=tuple(self.config['mlp_activations']),
    )


@pytest.fixture(
    scope='module',
    params=[('t5_1_1_tiny', ['gelu', 'linear']), ('t5_1_0_tiny', ['relu'])],
    ids=lambda param: param[0],
)
def golden(request):
  name, activations = request.param
  result = Golden(name)
  assert result.config['mlp_activations'] == activations
  return result


def test_parameter_names_and_shapes_are_t5x(golden):
  tokens = np.ones((2, 8), np.int32)

  def init(rng):
    embedder = golden.token_embedder.init(rng, tokens)
    x = golden.token_embedder.apply(embedder, tokens)
    encoder = golden.encoder.init(rng, x, tokens > 0)
    return {
        'token_embedder': nn.unbox(embedder['params']),
        'encoder': nn.unbox(encoder['params']),
    }

  params = jax.eval_shape(init, jax.random.key(0))
  shapes = {
      path: list(x.shape)
      for path, x in traverse_util.flatten_dict(params, sep='/').items()
  }
  expected = {
      path: shape
      for path, shape in golden.config['param_shapes'].items()
      if path.startswith(('encoder/', 'token_embedder/'))
  }
  assert shapes == expected


def test_encodes_like_t5x(golden):
  weights = t5x.read(golden.folder / 't5x_orbax')
  assert weights.encoder == golden.encoder
  params = traverse_util.unflatten_dict(
      {name: tensor.read() for name, tensor in weights.tensors.items()}, sep='/'
  )
  tokens = golden.reference['tokens']
  mask = tokens != 0
  lengths = mask.sum(axis=1, keepdims=True)

  @jax.jit
  def encode(params):
    embedder = {'params': params['token_embedder']}
    x = golden.token_embedder.apply(embedder, tokens)
    return golden.encoder.apply({'params': params['encoder']}, x, lengths)

  assert list(mask.sum(axis=1)) == [24, 17, 9, 2, 1]
  np.testing.assert_allclose(
      np.asarray(encode(params))[mask], golden.reference['encoded'][mask],
      rtol=0, atol=1e-5,
  )
