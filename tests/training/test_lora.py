"""LoRA: adapters against merged kernels, their dropout and their targets."""


import dataclasses

from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_training

from dualenc_jax import losses
from dualenc_jax.models import DualEncoder, GemmaEncoder, layers, Projection
from dualenc_jax.models.layers import Segments, TokenEmbedder
from dualenc_jax.objectives import Contrastive, encoding
from dualenc_jax.training import Lora, Partitioner, step as step_lib
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

LORA = Lora(4, 6.0)
FSDP = (('embed', 'data'),)


def flat(tree):
  return traverse_util.flatten_dict(jax.device_get(tree), sep='/')


def flat_names(tree):
  return [*traverse_util.flatten_dict(tree, sep='/')]


def make_plan(
    model, lora=LORA, partitioner=tiny_training.OneDevice(), optimizer=None
):
  objective = Contrastive(model, tiny_training.LOSS, tiny_training.SIMILARITY)
  optimizer = optimizer or tiny_training.recording_sgd()
  return step_lib.plan(objective, optimizer, partitioner, 0, lora=lora)


def make_state(plan, params, seed=0):
  """A state of these parameters and random adapters, on the mesh."""
  rng, known = np.random.default_rng(seed), flat(params)
  abstract = plan.abstract

  def value(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if name in known:
      return known[name]
    return 0.1 * rng.standard_normal(leaf.shape, dtype=np.float32)

  trained, base = (
      jax.tree_util.tree_map_with_path(value, tree)
      for tree in (abstract.params, abstract.base)
  )
  zeros = jax.tree.map(
      lambda a: np.zeros(a.shape, a.dtype), abstract.opt_state
  )
  state = step_lib.TrainState(np.int32(0), trained, zeros, (), base)
  return jax.device_put(state, jax.tree.map(lambda a: a.sharding, abstract))


def merge(state, lora=LORA):
  """W + alpha / r A B in float64, by name; heads and the rest as they are."""
  params, merged = flat(state.params), flat(state.base)
  for name, array in params.items():
    if name.endswith(layers.ADAPTER[0]):
      b = params[name.replace(*layers.ADAPTER)].astype(np.float64)
      kernel = name.removeprefix('lora/').replace('lora_a', 'kernel')
      merged[kernel] = (
          merged[kernel] + lora.alpha / lora.rank * (array.astype(float) @ b)
      ).astype(np.float32)
    elif not name.startswith('lora/'):
      merged[name] = array
  return traverse_util.unflatten_dict(merged, sep='/')


def gemma(num_layers=2, **options):
  encoder = GemmaEncoder(
      num_layers, 4, 2, 8, 64, window=(2, 2), global_every=2, **options
  )
  return DualEncoder(
      TokenEmbedder(tiny_training.VOCAB, 32), encoder, Projection(16)
  )


@pytest.mark.parametrize(
    'model, kernels',
    [
        (tiny_training.make_model(True), 10),
        (gemma(scan_layers=True, remat=True), 5),
    ],
    ids=['T5-two-towers', 'Gemma-scan'],
)
def test_embeddings_are_those_of_merged_kernels(model, kernels):
  plan = make_plan(model)
  params = tiny_training.init_params(model)
  state = make_state(plan, params)
  assert len(flat(state.params['lora'])) == 2 * kernels
  batch = tiny_training.make_batch()
  embed = jax.jit(lambda params: encoding.embed(model, params, batch))
  found = embed(plan.all_params(state))
  expected = embed(merge(state))
  for got, want, start in zip(found[:2], expected[:2], embed(params)[:2]):
    np.testing.assert_allclose(got, want, atol=2e-6)
    assert np.abs(got - start).max() > 1e-2
  # At the first step B is zero, and every embedding that of the base.
  fresh = flat(plan.init().params)
  assert all(not v.any() for n, v in fresh.items() if n.endswith('lora_b'))
  a = [v for n, v in fresh.items() if n.endswith('lora_a')]
  assert all(0.9 < np.abs(v).max() * v.shape[-2] ** 0.5 <= 1 for v in a)
  values = {**flat(state.params), **{n: fresh[n] for n in fresh if 'lora' in n}}
  start = state._replace(params=traverse_util.unflatten_dict(values, sep='/'))
  for got, want in zip(embed(plan.all_params(start))[:2], embed(params)[:2]):
    np.testing.assert_array_equal(got, want)


def test_gradients_on_a_mesh_are_those_of_merged_kernels():
  model, partitioner = tiny_training.make_model(), Partitioner(2, FSDP)
  plan = make_plan(model, partitioner=partitioner)
  params = tiny_training.unsharded_params()
  state = make_state(plan, params)
  before, merged = jax.device_get(state), merge(state)
  batch = tiny_training.make_batch()

  def loss_fn(params):
    embeddings = encoding.embed(model, params, batch)
    return losses.evaluate(
        tiny_training.LOSS, tiny_training.SIMILARITY, params['loss'], embeddings
    )[0]

  loss, gradients = jax.jit(jax.value_and_grad(loss_fn))(merged)
  state, metrics = plan.train_step(state, partitioner.to_device(batch))
  np.testing.assert_allclose(metrics['loss'], loss, rtol=2e-6)

  own, factor = flat(before.params), LORA.alpha / LORA.rank
  wanted = flat(gradients)
  expected = {n: g for n, g in wanted.items() if n in own}
  for name in own:
    if name.endswith('lora_a'):
      b = own[other := name.replace('lora_a', 'lora_b')]
      g = wanted[name.removeprefix('lora/').replace('lora_a', 'kernel')]
      expected[name] = factor * g @ b.T
      expected[other] = factor * own[name].T @ g
  traces = flat(state.opt_state[0].trace)
  assert traces.keys() == own.keys() == expected.keys()
  for name, gradient in expected.items():
    scale = np.abs(gradient).max()
    assert scale > 0 and np.abs(traces[name] - gradient).max() < 2e-5 * scale
    np.testing.assert_allclose(
        flat(state.params)[name], own[name] - 0.1 * traces[name], atol=1e-6
    )
  for name, array in flat(state.base).items():
    np.testing.assert_array_equal(array, flat(before.base)[name])
  # As their kernels [32, 64], 4 devices along the one and 2 along the other.
  of_mlp = state.params['lora']['encoder']['layers_0']['mlp']['wi_0']
  shapes = [of_mlp[n].addressable_shards[0].data.shape for n in layers.ADAPTER]
  assert shapes == [(8, 4), (4, 32)]


def test_dropout_of_adapters_is_by_text():
  lengths, rate = np.array([[3, 5]]), 0.25
  x = np.random.default_rng(0).standard_normal((1, 8, 512), np.float32)
  eye = np.eye(512, dtype=np.float32)
  dense = layers.Dense(512, ('embed', 'mlp'))
  params = {'kernel': 0 * eye, 'lora_a': eye, 'lora_b': eye}

  def apply(x, lengths, numbers):
    texts = Segments.from_lengths(x.shape[1], lengths, numbers)
    with layers.use_adapter_dropout(rate):
      return np.asarray(dense.apply(
          {'params': params}, x, texts, rngs={'dropout': jax.random.key(1)}
      ))

  y = apply(x, lengths, np.array([[7, 9]], np.uint32))
  kept = y != 0
  np.testing.assert_allclose(y, np.where(kept, x / (1 - rate), 0), rtol=1e-6)
  for start, end in ((0, 3), (3, 8)):
    assert (kept[0, start:end] == kept[0, start]).all()
  assert abs(kept.mean() - (1 - rate)) < 0.05
  # The second text alone, in a row of its own.
  alone = apply(x[:, 3:], lengths[:, 1:], np.array([[9]], np.uint32))
  np.testing.assert_array_equal(alone, y[:, 3:])


@pytest.mark.parametrize(
    'model',
    [
        pytest.param(tiny_training.make_model(), id='T5'),
        pytest.param(gemma(1), id='Gemma', marks=pytest.mark.nightly),
    ],
)
def test_dropout_is_at_every_adapter_while_training(model):
  """Without adapters, or without a rate, the values are those of the base."""
  params, values = tiny_training.init_params(model), []
  for rate in (0.0, 0.5):
    plan = make_plan(model, Lora(4, 6.0, rate))
    state = make_state(plan, params)
    state, _ = plan.train_step(state, tiny_training.make_batch())
    values.append(flat(state.opt_state[0].trace))
  same = [n for n, v in values[0].items() if np.array_equal(v, values[1][n])]
  assert not same


@pytest.mark.parametrize(
    'lora, said',
    [
        (dict(rank=0), r'Lora.rank \(LORA_RANK\) is 0; expected at least 1'),
        (dict(alpha=0.0), r'LORA_ALPHA\) is 0.0; expected a number above 0'),
        (dict(dropout=1.0), r'LORA_DROPOUT\) is 1.0'),
        (dict(targets='encoder/nothing'), 'LORA_TARGETS.*matches no parameter'),
        (dict(targets='.*'), 'matches encoder/encoder_norm/scale, no kernel'),
        (
            dict(targets='.*/embedding'),
            'matches token_embedder/embedding, an embedding table',
        ),
        (dict(targets='projection/kernel'), 'matches projection/kernel, which'),
    ],
)
def test_wrong_settings_are_named(lora, said):
  with pytest.raises(UserError, match=said):
    make_plan(tiny_training.make_model(), Lora(**({'rank': 4} | lora)))


def test_frozen_kernels_have_no_adapters():
  model = tiny_training.make_model(True)
  optimizer = dataclasses.replace(
      tiny_training.recording_sgd(),
      freeze=('passage_encoder/.*', 'projection/.*'),
  )
  plan = make_plan(model, optimizer=optimizer)
  trained, base = flat_names(plan.abstract.params), flat_names(
      plan.abstract.base
  )
  assert {name.split('/')[1] for name in trained} == {
      'encoder', 'log_temperature'
  }
  assert 'projection/kernel' in base
  optimizer = dataclasses.replace(optimizer, freeze=('(passage_)?encoder/.*',))
  with pytest.raises(UserError, match='matches frozen parameters alone'):
    make_plan(model, optimizer=optimizer)
