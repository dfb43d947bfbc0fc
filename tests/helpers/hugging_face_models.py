"""Random tiny models of transformers, and how encoders are compared."""

import json

from flax import traverse_util
import numpy as np
from safetensors import torch as safetensors_torch
import torch
import transformers

from dualenc_jax.models import layers

ROWS = 97
SIZES = {'d_model': 24, 'd_kv': 16, 'd_ff': 40, 'num_layers': 2, 'num_heads': 3}
# feed_forward_proj and what it is here.
ACTIVATIONS = {
    'relu': ('relu',), 'gated-gelu': ('gelu', 'linear'),
    'gated-silu': ('silu', 'linear'), 'gated-relu': ('relu', 'linear'),
    'gelu_new': ('gelu',), 'silu': ('silu',),
}


def model(kind, feed_forward='gated-gelu', seed=0, **config):
  """A model of a class of transformers with random weights."""
  torch.manual_seed(seed)
  config = getattr(transformers, kind).config_class(
      feed_forward_proj=feed_forward, **({'vocab_size': ROWS} | SIZES | config)
  )
  result = getattr(transformers, kind)(config)
  with torch.no_grad():
    for name, parameter in result.named_parameters():
      if 'layer_norm' in name:
        parameter.uniform_(0.5, 1.5)
      if 'relative_attention_bias' in name:
        parameter.normal_()
  return result.eval()


def untied(kind, **config):
  """A model with a head of its own, as the published T5 1.1 and mT5 have."""
  result = model(kind, **config)
  result.lm_head.weight = torch.nn.Parameter(
      torch.randn_like(result.shared.weight)
  )
  result.config.tie_word_embeddings = False
  result.config.scale_decoder_outputs = False
  return result


def change(folder, tensors=None, **config):
  """Changes tensors or values of a saved model; None removes one."""
  path = folder / 'config.json'
  edited = json.loads(path.read_text()) | config
  path.write_text(
      json.dumps({k: v for k, v in edited.items() if v is not None})
  )
  file = folder / 'model.safetensors'
  held = safetensors_torch.load_file(file) | (tensors or {})
  held = {k: v.contiguous() for k, v in held.items() if v is not None}
  safetensors_torch.save_file(held, file, {'format': 'pt'})


def tokens():
  """Rows of different lengths, padded with 0."""
  lengths = np.array([20, 33, 1, 7])
  rows = np.random.default_rng(0).integers(1, ROWS, (4, 36), np.int32)
  return np.where(np.arange(36) < lengths[:, None], rows, 0)


def their_states(theirs):
  """Hidden states of an encoder of transformers at real tokens."""
  rows = tokens()
  with torch.no_grad():
    states = theirs.get_encoder()(
        input_ids=torch.from_numpy(rows).long(),
        attention_mask=torch.from_numpy(rows != 0).long(),
    ).last_hidden_state
  return states.float().numpy()[rows != 0]


def our_states(weights):
  """Hidden states of an encoder of ours at real tokens."""
  params = {name: t.read() for name, t in weights.tensors.items()}
  return np.asarray(
      encode(
          weights.encoder, nested(params, 'encoder/'),
          params['token_embedder/embedding'],
      )
  )[tokens() != 0]


def encode(encoder, params, table):
  """Hidden states of `tokens`."""
  rows = tokens()
  lengths = np.sum(rows != 0, axis=1, keepdims=True)
  x = layers.TokenEmbedder(*table.shape).apply(
      {'params': {'embedding': table}}, rows
  )
  return encoder.apply({'params': params}, x, lengths)


def nested(params, prefix):
  """The tree below a prefix."""
  own = {
      name.removeprefix(prefix): value
      for name, value in params.items()
      if name.startswith(prefix)
  }
  return traverse_util.unflatten_dict(own, sep='/')
