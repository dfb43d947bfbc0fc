"""The encoder against Hugging Face's T5EncoderModel with the same weights."""

import functools

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_t5 import flat_params
import torch
import transformers
from transformers.models.t5 import modeling_t5

from dualenc_jax.models import layers, t5_encoder

pytestmark = pytest.mark.slow

VOCAB = 97
# (feed_forward_proj of transformers, activations of ours)
T5_1_1 = ('gated-gelu', ('gelu', 'linear'))
T5_1_0 = ('relu', ('relu',))
# E, layers, H, head_dim, MLP; of this the heads joined are not E.
JOINED = (24, 2, 3, 16, 40)
SIZES = {
    'base': (768, 12, 12, 64, 2048),
    'xxl': (4096, 24, 64, 64, 10240),
}


def hf_config(vocab, model_dim, depth, heads, head_dim, mlp_dim, feed_forward):
  return transformers.T5Config(
      vocab_size=vocab, d_model=model_dim, num_layers=depth, num_heads=heads,
      d_kv=head_dim, d_ff=mlp_dim, feed_forward_proj=feed_forward,
  )


def hf_model(feed_forward, sizes):
  torch.manual_seed(0)
  model = transformers.T5EncoderModel(hf_config(VOCAB, *sizes, feed_forward))
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if 'layer_norm' in name:
        parameter.uniform_(0.5, 1.5)
      if 'relative_attention_bias' in name:
        parameter.normal_()
  return model.eval()


def our_params(model):
  flat = flat_params(dict(model.named_parameters()))
  return traverse_util.unflatten_dict(
      {k: v.detach().numpy() for k, v in flat.items()}, sep='/'
  )


@functools.partial(jax.jit, static_argnums=(1, 2))
def encode(params, activations, sizes, tokens, lengths=None):
  model_dim, depth, heads, head_dim, mlp_dim = sizes
  embedder = layers.TokenEmbedder(VOCAB, model_dim)
  encoder = t5_encoder.T5Encoder(depth, heads, head_dim, mlp_dim, activations)
  x = embedder.apply({'params': params['token_embedder']}, tokens)
  if lengths is None:
    lengths = jnp.sum(tokens != 0, axis=1, keepdims=True)
  return encoder.apply({'params': params['encoder']}, x, lengths)


def random_tokens(lengths, padded_length):
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, VOCAB, (len(lengths), padded_length), np.int32)
  return np.where(
      np.arange(padded_length) < np.array(lengths)[:, None], tokens, 0
  )


def hf_encode(model, tokens):
  return model(
      input_ids=torch.from_numpy(tokens).long(),
      attention_mask=torch.from_numpy(tokens != 0).long(),
  ).last_hidden_state


@pytest.mark.parametrize(
    'form, sizes', [(T5_1_1, JOINED), (T5_1_0, (32, 3, 4, 8, 64))],
    ids=['1.1', '1.0'],
)
def test_hidden_states_equal_transformers(form, sizes):
  feed_forward, activations = form
  model = hf_model(feed_forward, sizes)
  params = our_params(model)
  for lengths, padded_length in [
      ([20, 20], 20), ([300, 131, 12], 310)
  ]:
    tokens = random_tokens(lengths, padded_length)
    mask = tokens != 0
    assert list(mask.sum(axis=1)) == lengths
    ours = encode(params, activations, sizes, tokens)
    theirs = hf_encode(model, tokens).detach().numpy()
    np.testing.assert_allclose(
        np.asarray(ours)[mask], theirs[mask], rtol=0, atol=1e-5
    )


def test_texts_that_share_a_row_are_encoded_as_each_alone():
  feed_forward, activations = T5_1_1
  sizes = JOINED
  model = hf_model(feed_forward, sizes)
  with torch.no_grad():  # So that a text at another's position would show.
    for name, parameter in model.named_parameters():
      if 'relative_attention_bias' in name:
        parameter.mul_(5.0)
  lengths = [[150, 3, 40, 1], [200, 0, 0, 0]]
  rows = np.zeros((2, 210), np.int32)
  rng = np.random.default_rng(0)
  for row, of_row in zip(rows, lengths):
    row[: sum(of_row)] = rng.integers(1, VOCAB, sum(of_row))
  ours = encode(our_params(model), activations, sizes, rows, np.array(lengths))
  for row, encoded, of_row in zip(rows, np.asarray(ours), lengths):
    start = 0
    for length in of_row:
      part = slice(start, start + length)
      start += length
      if length:
        alone = hf_encode(model, row[None, part]).detach().numpy()[0]
        np.testing.assert_allclose(encoded[part], alone, rtol=0, atol=1e-5)


def test_every_gradient_equals_torch_autograd():
  feed_forward, activations = T5_1_1
  sizes = JOINED
  model = hf_model(feed_forward, sizes)
  tokens = random_tokens([150, 60, 3], 160)
  # A fixed random direction at real tokens: no gradient vanishes by symmetry.
  direction = np.random.default_rng(1).normal(size=(*tokens.shape, sizes[0]))
  direction = (direction * (tokens != 0)[:, :, None]).astype(np.float32)

  (hf_encode(model, tokens) * torch.from_numpy(direction)).sum().backward()
  expected = flat_params({k: p.grad for k, p in model.named_parameters()})

  gradient = jax.grad(
      lambda params: jnp.sum(
          encode(params, activations, sizes, tokens) * direction
      )
  )(our_params(model))
  gradient = traverse_util.flatten_dict(gradient, sep='/')
  assert gradient.keys() == expected.keys()
  for path, value in gradient.items():
    theirs = expected[path].numpy()
    # Sums over some 200 tokens round to the scale of the largest entry.
    np.testing.assert_allclose(
        value, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max(), err_msg=path
    )


@pytest.mark.parametrize('num_buckets,max_distance', [(32, 128), (64, 300)])
def test_relative_position_buckets(num_buckets, max_distance):
  length = 600
  position = torch.arange(length)
  expected = modeling_t5.T5Attention._relative_position_bucket(
      position[None, :] - position[:, None], bidirectional=True,
      num_buckets=num_buckets, max_distance=max_distance,
  ).numpy()
  for n in (1, 2, 9, 128, 129, length):
    buckets = t5_encoder.relative_position_buckets(n, num_buckets, max_distance)
    np.testing.assert_array_equal(buckets, expected[:n, :n])


@pytest.mark.parametrize('size', SIZES)
def test_real_sizes_have_the_parameters_of_transformers(size):
  sizes = SIZES[size]
  model_dim, depth, heads, head_dim, mlp_dim = sizes
  feed_forward, activations = T5_1_1
  with torch.device('meta'):
    model = transformers.T5EncoderModel(hf_config(32128, *sizes, feed_forward))
  expected = {
      path: tuple(x.shape)
      for path, x in flat_params(dict(model.named_parameters())).items()
  }

  def init(rng):
    tokens = jnp.ones((1, 4), jnp.int32)
    embedder = layers.TokenEmbedder(32128, model_dim)
    encoder = t5_encoder.T5Encoder(depth, heads, head_dim, mlp_dim, activations)
    variables = embedder.init(rng, tokens)
    x = embedder.apply(variables, tokens)
    return {
        'token_embedder': variables['params'],
        'encoder': encoder.init(rng, x, tokens > 0)['params'],
    }

  params = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  shapes = {
      path: x.shape
      for path, x in traverse_util.flatten_dict(params, sep='/').items()
  }
  assert shapes == expected
  assert sum(map(np.prod, shapes.values())) == model.num_parameters()
