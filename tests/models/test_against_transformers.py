"""The encoder against Hugging Face's T5 and umT5 with the same weights."""

import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_t5 import flat_params
import torch
import transformers

from dualenc_jax.models import layers, t5_encoder

pytestmark = pytest.mark.slow

VOCAB, E = 97, 24
# H, head_dim, MLP; the heads joined are not E.
SIZES = 3, 16, 40
# By version of T5, the feed_forward_proj of transformers and our activations.
FORMS = {
    '1.1': ('gated-gelu', ('gelu', 'linear')), '1.0': ('relu', ('relu',)),
    'umT5': ('gated-gelu', ('gelu', 'linear')),
}


def hf_model(form):
  torch.manual_seed(0)
  heads, head_dim, mlp_dim = SIZES
  kind = transformers.T5EncoderModel
  if form == 'umT5':
    kind = transformers.UMT5EncoderModel
  model = kind(kind.config_class(
      vocab_size=VOCAB, d_model=E, num_layers=2, num_heads=heads,
      d_kv=head_dim, d_ff=mlp_dim, feed_forward_proj=FORMS[form][0],
  ))
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if 'layer_norm' in name:
        parameter.uniform_(0.5, 1.5)
      if 'relative_attention_bias' in name:
        parameter.normal_()
  return model.eval()


def hf_encode(model, tokens):
  return model(
      input_ids=torch.from_numpy(tokens).long(),
      attention_mask=torch.from_numpy(tokens != 0).long(),
  ).last_hidden_state


def our_params(model):
  flat = flat_params(dict(model.named_parameters()))
  return traverse_util.unflatten_dict(
      {k: v.detach().numpy() for k, v in flat.items()}, sep='/'
  )


@functools.partial(jax.jit, static_argnums=1)
def encode(params, form, tokens):
  x = layers.TokenEmbedder(VOCAB, E).apply(
      {'params': params['token_embedder']}, tokens
  )
  encoder = t5_encoder.T5Encoder(
      2, *SIZES, FORMS[form][1], bias_per_layer=form == 'umT5'
  )
  lengths = jnp.sum(tokens != 0, axis=1, keepdims=True)
  return encoder.apply({'params': params['encoder']}, x, lengths)


def random_tokens(lengths, padded_length):
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, VOCAB, (len(lengths), padded_length), np.int32)
  return tokens * (np.arange(padded_length) < np.array(lengths)[:, None])


@pytest.mark.parametrize('form', FORMS)
def test_states_and_gradients_equal_those_of_transformers(form):
  model = hf_model(form)
  tokens = random_tokens([300, 60, 3, 1], 310)
  # A fixed random direction at real tokens: no gradient vanishes by symmetry.
  direction = np.random.default_rng(1).normal(size=(*tokens.shape, E))
  direction = (direction * (tokens != 0)[:, :, None]).astype(np.float32)
  theirs = hf_encode(model, tokens)
  (theirs * torch.from_numpy(direction)).sum().backward()
  expected = flat_params({k: p.grad for k, p in model.named_parameters()})
  ours, transpose = jax.vjp(
      lambda params: encode(params, form, tokens), our_params(model)
  )
  mask = tokens != 0
  np.testing.assert_allclose(
      ours[mask], theirs.detach().numpy()[mask], rtol=0, atol=1e-5
  )
  (gradient,) = transpose(direction)
  gradient = traverse_util.flatten_dict(gradient, sep='/')
  assert gradient.keys() == expected.keys()
  for path, value in gradient.items():
    theirs = expected[path].numpy()
    # Sums over some 360 tokens round to the scale of the largest entry.
    np.testing.assert_allclose(
        value, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max(), err_msg=path
    )
