"""Small T5s of transformers with random weights, and ours of the same."""

from typing import NamedTuple

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from dualenc_jax.models import T5Decoder, T5Encoder, TokenEmbedder

VOCAB, WIDTH, HEADS, KV, HIDDEN, DEPTH = 96, 32, 4, 6, 48, 2
# The last number is a factor of EOS, by which it ends some texts.
VERSIONS = {'1.0': ('relu', True, 2), '1.1': ('gated-gelu', False, -2)}


class TinyT5(NamedTuple):
  """transformers' model, in float64, and the parts and parameters of ours."""

  theirs: transformers.T5ForConditionalGeneration
  parts: tuple[TokenEmbedder, T5Encoder, T5Decoder]
  params: dict


def make(version: str) -> TinyT5:
  """Of a version of T5."""
  projection, tied, eos = VERSIONS[version]
  torch.manual_seed(0)
  theirs = transformers.T5ForConditionalGeneration(
      transformers.T5Config(
          vocab_size=VOCAB, d_model=WIDTH, d_kv=KV, d_ff=HIDDEN,
          num_layers=DEPTH, num_heads=HEADS, feed_forward_proj=projection,
          tie_word_embeddings=tied, dropout_rate=0.0, decoder_start_token_id=0,
      )
  ).eval()
  with torch.no_grad():
    for name, tensor in theirs.named_parameters():
      # Norms that are told apart, biases that matter.
      if tensor.ndim == 1:
        tensor.add_(0.1 * torch.randn_like(tensor))
      if 'relative_attention_bias' in name:
        tensor.mul_(5)
    theirs.get_output_embeddings().weight[1] *= eos
  # The reference is rounded far less than what is compared with it.
  theirs = theirs.double()
  activations = ('relu',) if tied else ('gelu', 'linear')
  sizes = (DEPTH, HEADS, KV, HIDDEN)
  parts = (
      TokenEmbedder(VOCAB, WIDTH), T5Encoder(*sizes, activations),
      T5Decoder(WIDTH, *sizes, None if tied else VOCAB, activations),
  )
  return TinyT5(theirs, parts, params_of(theirs, tied))


def params_of(theirs, tied):
  state = theirs.state_dict()
  flat = flat_params({name: x.float().numpy() for name, x in state.items()})
  if tied:
    del flat['decoder/logits_dense/kernel']
  return traverse_util.unflatten_dict(flat, sep='/')


# Of a layer's attentions, our names and transformers'.
ATTENTIONS = {
    'encoder': {'attention': 'SelfAttention'},
    'decoder': {
        'self_attention': 'SelfAttention',
        'encoder_decoder_attention': 'EncDecAttention',
    },
}
NORMS = {
    'encoder': ('attention',), 'decoder': ('self_attention', 'cross_attention')
}


def flat_params(tensors):
  """Our paths -> transformers' tensors, transposed where the layouts differ."""
  flat = {'token_embedder/embedding': tensors['shared.weight']}
  for stack, attentions in ATTENTIONS.items():
    numbers = [int(n.split('.')[2]) for n in tensors if f'{stack}.block' in n]
    for i in range(max(numbers, default=-1) + 1):
      there, here = f'{stack}.block.{i}.layer', f'{stack}/layers_{i}'
      for j, (name, their) in enumerate(attentions.items()):
        for part, own in zip('qkvo', ('query', 'key', 'value', 'out')):
          kernel = tensors[f'{there}.{j}.{their}.{part}.weight']
          flat[f'{here}/{name}/{own}/kernel'] = kernel.T
      for part in ('wi', 'wi_0', 'wi_1', 'wo'):
        name = f'{there}.{len(attentions)}.DenseReluDense.{part}.weight'
        if name in tensors:
          flat[f'{here}/mlp/{part}/kernel'] = tensors[name].T
      for j, name in enumerate((*NORMS[stack], 'mlp')):
        scale = tensors[f'{there}.{j}.layer_norm.weight']
        flat[f'{here}/pre_{name}_layer_norm/scale'] = scale
    if numbers:
      bias = 'layer.0.SelfAttention.relative_attention_bias.weight'
      biases = [
          tensors[name].T for i in range(max(numbers) + 1)
          if (name := f'{stack}.block.{i}.{bias}') in tensors
      ]
      # umT5 has one in each layer.
      for i, table in enumerate(biases):
        own = f'layers_{i}/' if len(biases) > 1 else ''
        flat[f'{stack}/{own}relpos_bias/rel_embedding'] = table
      norm = tensors[f'{stack}.final_layer_norm.weight']
      flat[f'{stack}/{stack}_norm/scale'] = norm
  if 'lm_head.weight' in tensors:
    flat['decoder/logits_dense/kernel'] = tensors['lm_head.weight'].T
  return flat


def fresh_shapes(model):
  """Of the parameters that a module of ours begins with."""
  fresh = jax.eval_shape(
      lambda: nn.unbox(
          model.init(jax.random.key(0), jnp.ones((1, 2), jnp.int32))
      )['params']
  )
  return jax.tree.map(lambda x: x.shape, fresh)


def texts(seed=0):
  rng = np.random.default_rng(seed)
  return [
      [*rng.integers(2, VOCAB, size).tolist(), 1] for size in (9, 3, 14, 6, 1)
  ]


def padded(rows):
  out = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for row, tokens in zip(out, rows):
    row[: len(tokens)] = tokens
  return out


def logits_of(theirs, source, target):
  with torch.no_grad():
    return theirs(
        input_ids=torch.tensor(source).long(),
        attention_mask=torch.tensor(source != 0).long(),
        decoder_input_ids=torch.tensor(target).long(),
    ).logits.numpy()
