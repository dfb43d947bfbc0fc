"""The Gemma encoder equals those of transformers, values and gradients."""

import functools
import re

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.models.gemma_encoder import GemmaEncoder
from dualenc_jax.utils.errors import UserError

torch = pytest.importorskip('torch')
NAMES = {
    'self_attn.q_proj': 'attention/query/kernel',
    'self_attn.k_proj': 'attention/key/kernel',
    'self_attn.v_proj': 'attention/value/kernel',
    'self_attn.o_proj': 'attention/out/kernel',
    'self_attn.q_norm': 'attention/query_norm/scale',
    'self_attn.k_norm': 'attention/key_norm/scale',
    'mlp.gate_proj': 'mlp/wi_0/kernel',
    'mlp.up_proj': 'mlp/wi_1/kernel',
    'mlp.down_proj': 'mlp/wo/kernel',
    'input_layernorm': 'pre_attention_layer_norm/scale',
    'post_attention_layernorm': 'post_attention_layer_norm/scale',
    'pre_self_attn_layernorm': 'pre_attention_layer_norm/scale',
    'post_self_attn_layernorm': 'post_attention_layer_norm/scale',
    'pre_feedforward_layernorm': 'pre_mlp_layer_norm/scale',
    'post_feedforward_layernorm': 'post_mlp_layer_norm/scale',
    'ple_block.per_layer_input_gate': 'signal_gate/kernel',
    'ple_block.per_layer_projection': 'signal_out/kernel',
    'ple_block.post_per_layer_input_norm': 'post_signal_layer_norm/scale',
    'norm': 'encoder_norm/scale',
    'ple.per_layer_model_projection': 'signal/kernel',
    'ple.per_layer_projection_norm': 'signal_norm/scale',
}
COMMON = {
    'hidden_size': 24, 'intermediate_size': 40, 'head_dim': 8, 'vocab_size': 50,
    'attention_bias': False, 'attn_implementation': 'eager',
}
VOCABULARY, WIDTH = 50, 24


def t5gemma(layers, heads, kv_heads, window):
  from transformers.models.t5gemma import modeling_t5gemma as m
  from transformers.models.t5gemma.configuration_t5gemma import (
      T5GemmaModuleConfig,
  )
  config = T5GemmaModuleConfig(
      **COMMON, num_hidden_layers=layers, num_attention_heads=heads,
      num_key_value_heads=kv_heads, sliding_window=window,
      query_pre_attn_scalar=12, dropout_rate=0.0,
  )
  ours = GemmaEncoder(
      layers, heads, kv_heads, 8, 40, window=(window, window), global_every=2,
      global_rotary_base=10_000.0, query_scale=12**-0.5, query_key_norm=False,
      logit_cap=50.0,
  )
  return m.T5GemmaEncoder(config), ours


def gemma3(layers, heads, kv_heads, window):
  from transformers import Gemma3TextConfig, Gemma3TextModel
  config = Gemma3TextConfig(
      **COMMON, num_hidden_layers=layers, num_attention_heads=heads,
      num_key_value_heads=kv_heads, sliding_window=window,
      use_bidirectional_attention=True, query_pre_attn_scalar=8,
      sliding_window_pattern=3,
  )
  ours = GemmaEncoder(
      layers, heads, kv_heads, 8, 40, window=(window // 2, window // 2),
      global_every=3,
  )
  return Gemma3TextModel(config), ours


def t5gemma2(layers, heads, kv_heads, window):
  from transformers.models.t5gemma2 import modeling_t5gemma2 as m
  from transformers.models.t5gemma2.configuration_t5gemma2 import (
      T5Gemma2TextConfig,
  )
  config = T5Gemma2TextConfig(
      **COMMON, num_hidden_layers=layers, num_attention_heads=heads,
      num_key_value_heads=kv_heads, sliding_window=window, dropout_rate=0.0,
      query_pre_attn_scalar=8, layer_types=[
          'full_attention' if i % 2 else 'sliding_attention'
          for i in range(layers)
      ],
      rope_parameters={
          'sliding_attention': {'rope_type': 'default', 'rope_theta': 10_000.0},
          'full_attention': {
              'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 1_000_000.0
          },
      },
  )
  ours = GemmaEncoder(
      layers, heads, kv_heads, 8, 40,
      window=((window + 1) // 2 - 1, window // 2), global_every=2,
      global_rotary_factor=8.0,
  )
  return m.T5Gemma2TextEncoder(config), ours


def embedding_gemma2(layers, heads, kv_heads, window):
  from transformers import EmbeddingGemma2TextConfig, EmbeddingGemma2TextModel
  config = EmbeddingGemma2TextConfig(
      **COMMON, num_hidden_layers=layers, num_attention_heads=heads,
      num_key_value_heads=kv_heads, sliding_window=window,
      sliding_window_pattern=3, global_head_dim=12,
      num_global_key_value_heads=heads, hidden_size_per_layer_input=6,
      embedding_dim=WIDTH,
  )
  model = EmbeddingGemma2TextModel(config)
  # The projection of each state is no part of the encoder.
  model.embedding_projection = torch.nn.Identity()
  ours = GemmaEncoder(
      layers, heads, kv_heads, 8, 40, window=(window, window), global_every=3,
      query_scale=1.0, value_norm=True, norm_offset=0.0, signal_dim=6,
      layer_scale=True, last_is_global=True, global_head_dim=12,
      global_kv_heads=heads,
  )
  return model, ours


def ours_of(tensors):
  """Our parameters of another library's tensors, and the token embeddings."""
  tree = {}
  for name, tensor in tensors.items():
    value = tensor.detach().numpy()
    if layer := re.fullmatch(r'layers\.(\d+)\.(.+)\.weight', name):
      path = f'layers_{layer[1]}/{NAMES[layer[2]]}'
    elif name.endswith('.layer_scalar'):
      path = f'layers_{name.split(".")[1]}/scale'
    elif name.removesuffix('.weight') in NAMES:
      path = NAMES[name.removesuffix('.weight')]
    else:
      continue
    *parts, last = path.split('/')
    node = tree
    for part in parts:
      node = node.setdefault(part, {})
    node[last] = jnp.array(value.T if last == 'kernel' else value)
  return tree, jnp.array(tensors['embed_tokens.weight'].detach().numpy())


def draw(model, seed):
  """Random weights, norms too, that make logits of some units."""
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for name, p in model.named_parameters():
      scale = 1.0 if 'embed' in name else 0.2
      p.copy_(scale * torch.randn(p.shape, generator=generator))
  return model.eval()


def lengths_of(rng, rows, length):
  return np.array([length, *rng.integers(1, length + 1, rows - 1)], np.int32)


@pytest.mark.parametrize(
    ('kind', 'layers', 'heads', 'kv_heads', 'window', 'length'),
    [
        (t5gemma, 3, 3, 3, 2, 11),
        (t5gemma, 2, 4, 2, 40, 7),
        (gemma3, 4, 3, 1, 6, 13),
        (gemma3, 1, 1, 1, 5, 9),
        (t5gemma2, 3, 4, 1, 6, 12),
        (t5gemma2, 2, 2, 2, 5, 10),
        (embedding_gemma2, 4, 2, 1, 3, 11),
    ],
)
def test_states_and_gradients_are_those_of_transformers(
    kind, layers, heads, kv_heads, window, length
):
  check_equal(kind, layers, heads, kv_heads, window, length)


def check_equal(kind, layers, heads, kv_heads, window, length):
  theirs, ours = kind(layers, heads, kv_heads, window)
  draw(theirs, seed=length)
  params, table = ours_of(theirs.state_dict())
  rng = np.random.default_rng(length)
  lengths = lengths_of(rng, 4, length)
  tokens = rng.integers(3, VOCABULARY, (4, length))
  real = np.arange(length) < lengths[:, None]
  weights = rng.normal(size=(4, length, WIDTH)) * real[:, :, None]

  states = theirs(
      input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real).long()
  ).last_hidden_state
  (states * torch.tensor(weights, dtype=torch.float32)).sum().backward()

  def value(params, table):
    found = ours.apply(
        {'params': params}, table[tokens], jnp.array(lengths)[:, None]
    )
    return jnp.sum(found * weights), found

  grads, found = jax.jit(jax.grad(value, (0, 1), has_aux=True))(params, table)
  np.testing.assert_allclose(
      np.where(real[:, :, None], found, 0.0),
      np.where(real[:, :, None], states.detach().numpy(), 0.0),
      rtol=1e-5, atol=1e-5,
  )
  wanted, table_grad = ours_of({
      name: p.grad for name, p in theirs.named_parameters()
      if p.grad is not None
  } | {
      # Constants.
      name: torch.zeros(1) for name in theirs.state_dict() if 'scalar' in name
  })
  for one, other in zip(
      jax.tree.leaves((grads[0], grads[1])),
      jax.tree.leaves((wanted, table_grad)), strict=True,
  ):
    scale = max(1.0, float(jnp.abs(other).max()))
    np.testing.assert_allclose(one / scale, other / scale, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    'kind', [t5gemma, gemma3, t5gemma2, embedding_gemma2]
)
def test_twenty_random_sizes(kind):
  rng = np.random.default_rng(0)
  for _ in range(20):
    heads = int(rng.choice([1, 2, 3, 4, 6]))
    kv_heads = int(rng.choice([n for n in range(1, 7) if heads % n == 0]))
    check_equal(
        kind, int(rng.integers(1, 5)), heads, kv_heads,
        int(rng.integers(1, 20)), int(rng.integers(1, 18)),
    )


def make(**changes):
  sizes = {
      'num_layers': 3, 'num_heads': 4, 'num_kv_heads': 2, 'head_dim': 6,
      'mlp_dim': 16, 'window': (3, 2), 'global_every': 2, 'dropout_rate': 0.3,
      **changes,
  }
  return GemmaEncoder(**sizes)


SECOND = {
    'value_norm': True, 'norm_offset': 0.0, 'signal_dim': 4,
    'layer_scale': True, 'global_head_dim': 8, 'global_kv_heads': 1,
}


@pytest.mark.parametrize(
    'changes',
    [SECOND, pytest.param({'logit_cap': 20.0}, marks=pytest.mark.nightly)],
    ids=['second', 'capped'],
)
def test_a_text_has_the_same_states_in_any_row(changes):
  rng = np.random.default_rng(0)
  lengths, width = [9, 4, 6, 1], 12
  texts = [rng.normal(size=(n, width)).astype(np.float32) for n in lengths]
  padded = np.zeros((4, 10, width), np.float32)
  for row, text in zip(padded, texts):
    row[: len(text)] = text
  packed = np.zeros((2, 14, width), np.float32)
  packed[0, :13] = np.concatenate(texts[:2])
  packed[1, :7] = np.concatenate(texts[2:])
  alone = jnp.array(lengths, jnp.int32)[:, None]
  numbers = jnp.arange(4, dtype=jnp.uint32)
  model = make(num_layers=2, **changes)
  params = jax.jit(model.init)(jax.random.key(0), padded, alone)
  rngs = {'dropout': jax.random.key(1)}

  def flat(params, model):
    one = model.apply(params, padded, alone, numbers[:, None], rngs=rngs)
    return jnp.concatenate([row[:n] for row, n in zip(one, lengths)])

  def joined(params, model):
    both = model.apply(
        params, packed, alone.reshape(2, 2), numbers.reshape(2, 2), rngs=rngs
    )
    return jnp.concatenate([both[0, :13], both[1, :7]])

  seed = rng.normal(size=(20, width)).astype(np.float32)

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def both(form, model):
    value, back = jax.vjp(lambda p: form(p, model), params)
    return value, jax.tree.leaves(back(seed))

  # Packed, and each layer computed again in the backward pass.
  again = make(num_layers=2, **changes, remat=True)
  (value, grads), (found, found_grads) = both(flat, model), both(joined, again)
  np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)
  for one, other in zip(found_grads, grads, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


def test_blocks_begin_with_a_factor():
  model = make(num_layers=1, residual_init=0.25, **SECOND)
  lengths = jnp.array([[3]], jnp.int32)
  params = jax.jit(model.init)(
      jax.random.key(0), jnp.ones((1, 3, 12)), lengths
  )
  layer = nn.unbox(params)['params']['layers_0']
  for name, tree in layer.items():
    if name.endswith('layer_norm'):
      factor = 0.25 if name.startswith('post') else 1.0
      np.testing.assert_array_equal(tree['scale'], factor - model.norm_offset)


def test_a_scan_has_the_same_states():
  model = make(dropout_rate=0.0)
  x = jax.random.normal(jax.random.key(2), (2, 9, 12))
  lengths = jnp.array([[9], [5]], jnp.int32)
  params = nn.unbox(jax.jit(model.init)(jax.random.key(0), x, lengths))
  params = params['params']
  wanted = jax.jit(model.apply)({'params': params}, x, lengths)
  layers = [params[f'layers_{i}'] for i in range(3)]
  stacked = {
      'layers': jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers),
      'encoder_norm': params['encoder_norm'],
  }
  for remat in False, True:
    scanned = make(dropout_rate=0.0, scan_layers=True, remat=remat)
    found = jax.jit(scanned.apply)({'params': stacked}, x, lengths)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'num_kv_heads': 3}, 'num_kv_heads is 3; expected a divisor of'),
        ({'head_dim': 7}, 'head_dim is 7; expected an even number'),
        ({'global_kv_heads': 3}, 'global_kv_heads is 3; expected a divisor of'),
        ({'global_head_dim': 7}, 'global_head_dim is 7; expected an even'),
        ({**SECOND, 'scan_layers': True}, 'as layers differ in shapes'),
        ({'dtype': 'float16'}, 'overflows in float16'),
        ({'window': (3,)}, 'window is (3,); expected two whole numbers'),
    ],
)
def test_bad_sizes_are_explained(changes, message):
  with pytest.raises(UserError, match=re.escape(message)):
    make(**changes)
