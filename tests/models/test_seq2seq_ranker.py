"""The decoder and the released rankers' form, against transformers."""

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from dualenc_jax.models import T5Encoder, TokenEmbedder
from dualenc_jax.models.seq2seq_ranker import Seq2SeqRanker
from dualenc_jax.models.t5_decoder import T5Decoder

VOCAB, WIDTH, HEADS, KV, HIDDEN, DEPTH = 96, 32, 4, 6, 48, 2
TOKENS = (17, 58)
VERSIONS = {'1.0': ('relu', True), '1.1': ('gated-gelu', False)}


@pytest.fixture(scope='module', params=VERSIONS)
def pair(request):
  """transformers' model of random weights, ours, and its parameters."""
  projection, tied = VERSIONS[request.param]
  torch.manual_seed(0)
  theirs = transformers.T5ForConditionalGeneration(
      transformers.T5Config(
          vocab_size=VOCAB,
          d_model=WIDTH,
          d_kv=KV,
          d_ff=HIDDEN,
          num_layers=DEPTH,
          num_heads=HEADS,
          feed_forward_proj=projection,
          tie_word_embeddings=tied,
          dropout_rate=0.0,
          decoder_start_token_id=0,
      )
  ).eval()
  with torch.no_grad():
    for name, tensor in theirs.named_parameters():
      # Norms that are told apart, biases that matter.
      if tensor.ndim == 1:
        tensor.add_(0.1 * torch.randn_like(tensor))
      if 'relative_attention_bias' in name:
        tensor.mul_(5)
  # The reference is rounded far less than what is compared with it.
  theirs = theirs.double()
  activations = ('relu',) if tied else ('gelu', 'linear')
  sizes = (DEPTH, HEADS, KV, HIDDEN)
  ours = Seq2SeqRanker(
      TokenEmbedder(VOCAB, WIDTH),
      T5Encoder(*sizes, activations),
      T5Decoder(WIDTH, *sizes, None if tied else VOCAB, activations),
      TOKENS,
  )
  return theirs, ours, params_of(theirs, tied)


def params_of(theirs, tied):
  state = {
      name: tensor.float().numpy()
      for name, tensor in theirs.state_dict().items()
  }
  flat = {'token_embedder/embedding': state['shared.weight']}
  parts = {'encoder': ('attention',), 'decoder': (
      'self_attention', 'encoder_decoder_attention'
  )}
  theirs_of = {
      'attention': 'SelfAttention',
      'self_attention': 'SelfAttention',
      'encoder_decoder_attention': 'EncDecAttention',
  }
  norms = {
      'encoder': ('pre_attention_layer_norm', 'pre_mlp_layer_norm'),
      'decoder': (
          'pre_self_attention_layer_norm',
          'pre_cross_attention_layer_norm',
          'pre_mlp_layer_norm',
      ),
  }
  for stack, attentions in parts.items():
    for i in range(DEPTH):
      there, here = f'{stack}.block.{i}.layer', f'{stack}/layers_{i}'
      for j, name in enumerate(attentions):
        for part, own in zip('qkvo', ('query', 'key', 'value', 'out')):
          kernel = state[f'{there}.{j}.{theirs_of[name]}.{part}.weight']
          flat[f'{here}/{name}/{own}/kernel'] = kernel.T
      last = len(attentions)
      for part in ('wi', 'wi_0', 'wi_1', 'wo'):
        name = f'{there}.{last}.DenseReluDense.{part}.weight'
        if name in state:
          flat[f'{here}/mlp/{part}/kernel'] = state[name].T
      for j, name in enumerate(norms[stack]):
        flat[f'{here}/{name}/scale'] = state[f'{there}.{j}.layer_norm.weight']
    bias = 'block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    flat[f'{stack}/relpos_bias/rel_embedding'] = state[f'{stack}.{bias}'].T
    flat[f'{stack}/{stack}_norm/scale'] = state[
        f'{stack}.final_layer_norm.weight'
    ]
  if not tied:
    flat['decoder/logits_dense/kernel'] = state['lm_head.weight'].T
  return traverse_util.unflatten_dict(flat, sep='/')


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


def test_scores_are_those_of_transformers(pair):
  theirs, ours, params = pair
  source = padded(texts())
  logits = logits_of(theirs, source, np.zeros((len(source), 1), int))[:, 0]
  apply = jax.jit(lambda m, t: m.apply({'params': params}, t), static_argnums=0)
  for tokens, wanted in (
      (TOKENS, logits[:, TOKENS[0]] - logits[:, TOKENS[1]]),
      (TOKENS[:1], logits[:, TOKENS[0]]),
  ):
    found = apply(ours.clone(tokens=tokens), source)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert np.ptp(wanted) > 0.1


def test_packed_texts_have_the_scores_they_have_alone(pair):
  _, ours, params = pair
  rows = texts()
  alone = ours.apply({'params': params}, padded(rows))
  packed = padded([rows[0] + rows[1] + rows[3], rows[2] + rows[4]])
  lengths = np.array([
      [len(rows[i]) for i in (0, 1, 3)], [len(rows[2]), len(rows[4]), 0]
  ])
  found = np.asarray(ours.apply({'params': params}, packed, lengths))
  np.testing.assert_allclose(
      found.ravel()[:5], alone[np.array([0, 1, 3, 2, 4])], rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize('step_by_step', [False, True])
def test_logits_of_all_positions_are_those_of_transformers(pair, step_by_step):
  theirs, ours, params = pair
  source = padded(texts())
  target = np.random.default_rng(1).integers(2, VOCAB, (len(source), 40))
  target[:, 0] = 0
  wanted = logits_of(theirs, source, target)

  def run(module, source, target):
    lengths = jnp.sum(source != 0, axis=1, keepdims=True)
    encoded = module.encoder(module.token_embedder(source), lengths)
    embedded = module.token_embedder(target)
    mask = (source != 0)[:, None]
    if step_by_step:
      caches, found = module.decoder.start(encoded, target.shape[1]), []
      for i in range(target.shape[1]):
        x, caches = module.decoder.step(
            embedded[:, i : i + 1], caches, jnp.int32(i), mask
        )
        found.append(x)
      found = jnp.concatenate(found, axis=1)
    else:
      found = module.decoder(embedded, encoded, mask)
    embedding = module.token_embedder.variables['params']['embedding']
    return module.decoder.logits(found, nn.unbox(embedding))

  found = jax.jit(
      lambda s, t: ours.apply({'params': params}, s, t, method=run)
  )(source, target.astype(np.int32))
  np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_fresh_parameters_have_the_released_names(pair):
  _, ours, params = pair
  fresh = jax.eval_shape(
      lambda: nn.unbox(
          ours.init(jax.random.key(0), jnp.ones((1, 2), jnp.int32))
      )['params']
  )
  shapes = jax.tree.map(lambda x: x.shape, fresh)
  assert shapes == jax.tree.map(lambda x: x.shape, params)
