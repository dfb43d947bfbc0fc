"""The dual encoder: what an embedding depends on, and what towers share."""

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.models import dual_encoder, layers, t5_encoder
from dualenc_jax.utils.errors import UserError

VOCAB, E, D = 60, 24, 20
PARTS = {'token_embedder', 'encoder', 'projection'}
# Variant -> the parts that the passage tower has of its own. Each part is of
# one of the last two alone, and both have one.
VARIANTS = {
    'SDE': set(),
    'ADE-STE': {'encoder', 'projection'},
    'ADE-SPL': {'token_embedder', 'encoder'},
}


def make_part(name, width=E, **options):
  if name == 'token_embedder':
    return layers.TokenEmbedder(VOCAB, width)
  if name == 'encoder':
    return t5_encoder.T5Encoder(1, 3, 16, 40, **options)
  return dual_encoder.Projection(D)


def make(own=(), width=E, **options):
  """Options are of the query encoder, the width of the passage tower."""
  return dual_encoder.DualEncoder(
      **{part: make_part(part, **options) for part in PARTS},
      **{f'passage_{part}': make_part(part, width) for part in own},
  )


def random_tokens(lengths):
  rng = np.random.default_rng(0)
  tokens = np.zeros((len(lengths), max(lengths)), np.int32)
  for row, length in zip(tokens, lengths, strict=True):
    row[:length] = rng.integers(1, VOCAB, length)
  return tokens


def random_variables(model):
  """Random parameters, matrices around zero and scales around one."""
  tokens = random_tokens([3])
  variables = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda x: rng.normal(x.ndim == 1, 0.2, x.shape).astype(np.float32),
      nn.unbox(variables),
  )


@pytest.fixture(scope='module')
def sde():
  """A shared tower: (variables, tokens [B, L] -> embeddings [B, D])."""
  model = make()
  variables = random_variables(model)
  # A large bias, so that an effect of padding on attention would show.
  variables['params']['encoder']['relpos_bias']['rel_embedding'] *= 10
  encode = jax.jit(
      lambda tokens: model.apply(variables, tokens, method='encode_passage')
  )
  return variables, lambda tokens: np.asarray(encode(tokens))


def test_embeddings_are_float32_of_norm_one(sde):
  tokens, model = random_tokens([10, 7, 1, 4]), make(dtype='bfloat16')
  embeddings, _ = jax.jit(model.apply)(sde[0], tokens, tokens)
  assert embeddings.shape == (4, D)
  assert embeddings.dtype == np.float32
  norms = np.linalg.norm(np.asarray(embeddings, np.float64), axis=1)
  np.testing.assert_allclose(norms, 1.0, rtol=0, atol=1e-6)


def test_embedding_does_not_depend_on_padding_or_batch_mates(sde):
  _, encode = sde
  tokens = random_tokens([10, 7, 1, 4, 10, 3])
  together = encode(tokens)
  longer = encode(np.pad(tokens, [(0, 0), (0, 190)]))
  np.testing.assert_allclose(longer, together, rtol=0, atol=1e-6)
  for i in range(len(tokens)):
    alone = encode(tokens[i : i + 1])
    np.testing.assert_allclose(alone[0], together[i], rtol=0, atol=1e-6)
  # The rows are far apart, so that mixing two would not pass unseen.
  cosines = together @ together.T - 2 * np.eye(len(tokens))
  assert cosines.max() < 0.99


def test_row_of_padding_is_a_zero_vector_with_finite_gradients():
  model = make()
  tokens = random_tokens([5, 0, 3])

  def scalar(variables):
    embeddings, _ = model.apply(variables, tokens, tokens)
    direction = jnp.arange(D, dtype=jnp.float32)[None]
    return jnp.sum(embeddings * direction), embeddings

  (_, embeddings), gradient = jax.jit(jax.value_and_grad(scalar, has_aux=True))(
      random_variables(model)
  )
  np.testing.assert_array_equal(embeddings[1], np.zeros(D))
  assert np.abs(embeddings[0]).max() > 0.1
  for path, x in jax.tree.leaves_with_path(gradient):
    assert np.isfinite(x).all(), jax.tree_util.keystr(path)


def test_mean_pool_equals_numpy():
  rng = np.random.default_rng(0)
  x = rng.normal(3.0, 10.0, size=(4, 9, 5)).astype(np.float32)
  lengths = [9, 4, 1, 0]
  pooled = dual_encoder.mean_pool(jnp.asarray(x), jnp.array(lengths)[:, None])
  pooled = pooled[:, 0]
  expected = np.zeros((4, 5))
  for i, length in enumerate(lengths[:3]):
    expected[i] = x[i, :length].astype(np.float64).mean(axis=0)
  np.testing.assert_allclose(pooled, expected, rtol=1e-6, atol=1e-6)


def test_mean_pool_adds_in_float32():
  # 1 + 2**-8 is lost in bfloat16, whose sums would stop at 256.
  x = jnp.ones((1, 1000, 2), jnp.bfloat16)
  pooled = dual_encoder.mean_pool(x, jnp.array([[1000]]))[0]
  assert pooled.dtype == jnp.float32
  np.testing.assert_array_equal(pooled, np.ones((1, 2)))


def test_projection_equals_numpy_and_has_no_bias(sde):
  variables, embed = sde
  tokens = random_tokens([6, 2])
  params = variables['params']
  assert list(params['projection']) == ['kernel']
  x = layers.TokenEmbedder(VOCAB, E).apply(
      {'params': params['token_embedder']}, tokens
  )
  lengths = np.array([[6], [2]])
  encode = jax.jit(make_part('encoder').apply)
  x = encode({'params': params['encoder']}, x, lengths)
  x = np.asarray(x, np.float64)
  pooled = np.stack([x[0].mean(axis=0), x[1, :2].mean(axis=0)])
  projected = pooled @ np.asarray(params['projection']['kernel'], np.float64)
  expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
  np.testing.assert_allclose(embed(tokens), expected, rtol=0, atol=1e-6)


def test_a_chain_of_projections_equals_numpy():
  chain = dual_encoder.Projection(D, (4 * E, 30))
  x = np.random.default_rng(0).normal(size=(3, 2, E)).astype(np.float32)
  params = nn.unbox(chain.init(jax.random.key(0), x)['params'])
  kernels = [
      params['hidden_0']['kernel'], params['hidden_1']['kernel'],
      params['kernel'],
  ]
  assert [k.shape for k in kernels] == [(E, 4 * E), (4 * E, 30), (30, D)]
  expected = x.astype(np.float64)
  for kernel in kernels:
    expected = expected @ np.asarray(kernel, np.float64)
  got = chain.apply({'params': params}, x)
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
  for hidden in (4 * E, (0,), (2.5,)):
    with pytest.raises(UserError, match='Projection.hidden is .*whole numbers'):
      dual_encoder.Projection(D, hidden)


@pytest.mark.parametrize('variant', VARIANTS)
def test_each_tower_has_exactly_its_parameters(variant):
  own, tokens = VARIANTS[variant], random_tokens([7, 4, 9])
  model = make(own)
  variables = random_variables(model)
  assert variables['params'].keys() == PARTS | {f'passage_{p}' for p in own}
  direction = jax.random.normal(jax.random.key(1), (3, D))
  passage_parts = {f'passage_{part}' if part in own else part for part in PARTS}
  for tower, parts in [(0, PARTS), (1, passage_parts)]:
    gradient = jax.jit(jax.grad(
        lambda variables: jnp.sum(
            model.apply(variables, tokens, tokens)[tower] * direction
        )
    ))(variables)['params']
    for path, x in traverse_util.flatten_dict(gradient).items():
      assert np.any(np.asarray(x) != 0) == (path[0] in parts), path


def test_towers_of_different_width_cannot_share():
  said = 'is 24 and .* is 32,.*passage_projection too'
  with pytest.raises(UserError, match=said):
    make({'token_embedder', 'encoder'}, width=32)
