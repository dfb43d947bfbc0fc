"""The encoder against outputs that T5X wrote (tests/data/golden)."""

import json
import pathlib

from flax import traverse_util
import jax
import numpy as np
import pytest

from dualenc_jax.checkpoints import t5x
from dualenc_jax.models import layers, t5_encoder

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'


@pytest.mark.parametrize(
    'name, activations',
    [('t5_1_1_tiny', ('gelu', 'linear')), ('t5_1_0_tiny', ('relu',))],
)
def test_encodes_like_t5x(name, activations):
  folder = GOLDEN / name
  config = json.loads((folder / 'config.json').read_text())
  reference = np.load(folder / 'reference.npz')
  weights = t5x.read(folder / 't5x_orbax')
  encoder = t5_encoder.T5Encoder(
      config['num_encoder_layers'], config['num_heads'], config['head_dim'],
      config['mlp_dim'], activations,
  )
  assert weights.encoder == encoder
  params = traverse_util.unflatten_dict(
      {name: tensor.read() for name, tensor in weights.tensors.items()}, sep='/'
  )
  tokens = reference['tokens']
  mask = tokens != 0
  lengths = mask.sum(axis=1, keepdims=True)
  assert list(lengths[:, 0]) == [24, 17, 9, 2, 1]

  @jax.jit
  def encode(params):
    embedder = layers.TokenEmbedder(config['vocab_size'], config['emb_dim'])
    x = embedder.apply({'params': params['token_embedder']}, tokens)
    return encoder.apply({'params': params['encoder']}, x, lengths)

  np.testing.assert_allclose(
      np.asarray(encode(params))[mask], reference['encoded'][mask],
      rtol=0, atol=1e-5,
  )
