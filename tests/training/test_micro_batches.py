"""Gradient caching: nothing changes but the memory, on every mesh."""

import functools
import math
import re

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_training

from dualenc_jax import model_dir
from dualenc_jax.errors import UserError
from dualenc_jax.losses import Embeddings
from dualenc_jax.training import Partitioner
from dualenc_jax.training import plan as plan_lib
from dualenc_jax.training import rules
from dualenc_jax.training import step as step_lib

FSDP = (('embed', 'data'),)
SIZE = 32
RATE = 0.2
# The dropout key of the first step with the seed 0.
KEY = jax.random.fold_in(jax.random.key(0), 0)
LOSS_TOLERANCE = 1e-6
# Sums over devices run in another order; the loss divides by 0.1.
LOSS_TOLERANCE_ON_MESHES = 2e-6
GRADIENT_TOLERANCE = 1e-5


@functools.cache
def make_params(separate_towers=False, scan_layers=False):
  if not scan_layers:
    return tiny_training.unsharded_params(separate_towers)
  model = tiny_training.make_model(separate_towers, scan_layers=True)
  return nn.unbox(step_lib.init_params(model, tiny_training.LOSS, 0))


def value_and_gradients(embed, params):
  """Of the loss, on one device without a mesh."""

  def loss_fn(params):
    return tiny_training.LOSS(params['loss'], embed(params))[0]

  return jax.device_get(jax.jit(jax.value_and_grad(loss_fn))(params))


@functools.cache
def by_the_step(
    separate_towers=False, num_negatives=0, micro_batch_size=None, options=()
):
  """Loss and gradients of `step.embed` on one device, dropout on."""
  options = dict(options)
  model = tiny_training.make_model(
      separate_towers, dropout_rate=RATE, **options
  )
  batch = tiny_training.make_batch(SIZE, num_negatives)
  return value_and_gradients(
      lambda params: step_lib.embed(
          model, params, batch, KEY, micro_batch_size
      ),
      make_params(separate_towers, options.get('scan_layers', False)),
  )


def assert_equal(actual, expected, loss_tolerance, tolerance):
  (loss, gradients), (expected_loss, expected_gradients) = actual, expected
  np.testing.assert_allclose(loss, expected_loss, rtol=loss_tolerance)
  for path, got, want in zip(
      rules.leaf_paths(expected_gradients),
      jax.tree.leaves(gradients),
      jax.tree.leaves(expected_gradients),
      strict=True,
  ):
    scale = np.abs(want).max()
    assert scale > 0, path
    error = np.abs(got - want).max() / scale
    assert error < tolerance, f'{path}: {error:.2e}'


@pytest.mark.parametrize('separate_towers, num_negatives', [(False, 3)])
def test_equal_to_a_loop_by_hand(separate_towers, num_negatives):
  """No scan, no checkpoint, no micro-batch of the step's."""
  model = tiny_training.make_model(separate_towers, dropout_rate=RATE)
  batch = tiny_training.make_batch(SIZE, num_negatives)
  query_key, passage_key = jax.random.split(KEY)

  def embed(params):
    query, passage, negatives = [], [], []
    for rows in np.split(np.arange(SIZE), [5, 16]):

      def encode(method, tokens, key, rows=rows):
        variables = {'params': step_lib.model_params(params)}
        return model.apply(
            variables, tokens, rows, rngs={'dropout': key}, method=method
        )

      query.append(
          encode('encode_query', batch['query_tokens'][rows], query_key)
      )
      # A passage has the number i * (1 + K), its hard negatives the next K.
      first = rows * (1 + num_negatives)
      passage.append(
          encode(
              'encode_passage',
              batch['passage_tokens'][rows],
              passage_key,
              first,
          )
      )
      negatives.append(
          jnp.stack(
              [
                  encode(
                      'encode_passage',
                      batch['negative_tokens'][rows, k],
                      passage_key,
                      first + 1 + k,
                  )
                  for k in range(num_negatives)
              ],
              axis=1,
          )
      )
    return Embeddings(
        jnp.concatenate(query),
        jnp.concatenate(passage),
        jnp.concatenate(negatives),
        batch['query_ids'],
        batch['passage_ids'],
        batch['negative_ids'],
        (batch['negative_tokens'] != 0).any(axis=-1),
    )

  expected = value_and_gradients(embed, make_params(separate_towers))
  for size in (None, 8):
    actual = by_the_step(separate_towers, num_negatives, size)
    assert_equal(actual, expected, LOSS_TOLERANCE, GRADIENT_TOLERANCE)


@pytest.mark.parametrize('size', [1, SIZE])
def test_every_size_has_the_same_loss_and_gradients(size):
  assert_equal(
      by_the_step(micro_batch_size=size),
      by_the_step(),
      LOSS_TOLERANCE,
      GRADIENT_TOLERANCE,
  )


@pytest.mark.parametrize(
    'options, tolerance',
    [
        (dict(scan_layers=True, remat=True), GRADIENT_TOLERANCE),
        # The gradient of a kernel is rounded to 8 bits in each micro-batch.
        (dict(dtype='bfloat16'), 0.02),
    ],
    ids=['scan-remat', 'bfloat16'],
)
def test_equal_with_options_of_the_encoder(options, tolerance):
  options = tuple(options.items())
  assert_equal(
      by_the_step(True, 0, 4, options),
      by_the_step(True, 0, None, options),
      max(LOSS_TOLERANCE, tolerance / 100),
      tolerance,
  )


@pytest.mark.parametrize(
    'separate_towers, num_negatives, partitioner, size',
    [
        pytest.param(False, 3, Partitioner(), 8, id='SDE-8x1'),
        pytest.param(True, 0, Partitioner(), 16, id='ADE-8x1'),
        pytest.param(False, 0, Partitioner(4), 2, id='SDE-2x4'),
        pytest.param(True, 3, Partitioner(4), 8, id='ADE-2x4'),
        pytest.param(False, 0, Partitioner(2, FSDP), 16, id='SDE-4x2-FSDP'),
        pytest.param(True, 3, Partitioner(2, FSDP), 4, id='ADE-4x2-FSDP'),
        pytest.param(False, 0, Partitioner(2, FSDP), None, id='at-once'),
    ],
)
def test_equal_on_every_mesh(separate_towers, num_negatives, partitioner, size):
  model = tiny_training.make_model(separate_towers, dropout_rate=RATE)
  abstract, _, step = tiny_training.plan(
      partitioner, model=model, micro_batch_size=size
  )
  batch = tiny_training.make_batch(SIZE, num_negatives)
  state, metrics = step(
      tiny_training.make_state(abstract, separate_towers),
      partitioner.to_device(batch),
  )
  assert_equal(
      (metrics['loss'], state.opt_state[0].trace),
      by_the_step(separate_towers, num_negatives),
      LOSS_TOLERANCE_ON_MESHES,
      GRADIENT_TOLERANCE,
  )


def test_every_row_of_every_micro_batch_has_dropout_of_its_own():
  model = tiny_training.make_model(dropout_rate=RATE)
  batch = {
      name: np.broadcast_to(tokens[:1, ..., :1], tokens.shape)
      for name, tokens in tiny_training.make_batch(8, 2).items()
  }
  embeddings = jax.jit(
      lambda params: step_lib.embed(model, params, batch, KEY, 2)
  )(make_params())
  rows = np.concatenate(
      [
          embeddings.query,
          embeddings.passage,
          embeddings.negatives.reshape(16, -1),
      ]
  )
  distance = np.abs(rows[:, None] - rows).max(axis=-1) + np.eye(len(rows))
  assert distance.min() > 1e-3


class Product:
  """A loss that moves nothing but sums between devices."""

  def init(self):
    return {}

  def __call__(self, params, batch):
    del params
    value = jnp.mean(batch.query * batch.passage)
    value -= jnp.mean(batch.query[:, None] * batch.negatives)
    return value, {'loss': value}


def compile_step(partitioner, size, batch_size=48, loss=None, **options):
  model = tiny_training.make_model(**options)
  abstract, _, step = tiny_training.plan(
      partitioner, model=model, loss=loss or Product(), micro_batch_size=size
  )
  batch = {
      name: jax.ShapeDtypeStruct(x.shape, x.dtype)
      for name, x in tiny_training.make_batch(batch_size, 3).items()
  }
  return step.lower(abstract, batch).compile()


def moves(compiled):
  """(kind, shape, what for) of what moves arrays between devices unsummed."""
  kinds = 'all-gather|all-to-all|collective-permute|reduce-scatter'
  return [
      match.groups()
      for match in re.finditer(
          rf'= (\S.*) ({kinds})(?:-start)?\(.*op_name="([^"]*)"',
          compiled.as_text(),
      )
  ]


@pytest.mark.parametrize('model_parallel', [1, 2])
def test_no_row_leaves_its_device(model_parallel):
  compiled = compile_step(
      Partitioner(model_parallel), 16, dropout_rate=RATE
  )
  assert 'all-reduce' in compiled.as_text()
  assert moves(compiled) == []


def test_fully_sharded_layers_gather_parameters_only():
  compiled = compile_step(Partitioner(1, FSDP), 16, dropout_rate=RATE)
  layers = [move for move in moves(compiled) if '/layers_' in move[2]]
  assert len(layers) >= 2 * 2 * 7
  params = make_params()['encoder']
  shapes = {
      f'f32[{",".join(map(str, x.shape))}]' for x in jax.tree.leaves(params)
  }
  for shape, kind, name in layers:
    assert kind == 'all-gather', (kind, name)
    assert re.sub(r'\{.*', '', shape) in shapes, (shape, name)


def test_memory_falls_with_the_micro_batch():
  partitioner = tiny_training.OneDevice()
  temporaries = [
      compile_step(partitioner, size, batch_size=512, dropout_rate=RATE)
      .memory_analysis()
      .temp_size_in_bytes
      for size in (None, 64, 8)
  ]
  assert temporaries[1] < temporaries[0] / 4
  assert temporaries[2] < temporaries[1] / 2


def build(*bindings):
  return model_dir.build_experiment(
      ['runs/quickstart.gin', 'models/tiny.gin'],
      [
          'MODEL_DIR = "x"',
          'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064',
          'BATCH_SIZE = 48',
          *bindings,
      ],
      [],
  )


def test_the_gin_macro_reaches_the_step():
  for bindings, rows in [((), 48), (['MICRO_BATCH_SIZE = 16'], 16)]:
    experiment = build(*bindings)
    plan = plan_lib.make_plan(experiment)
    text = plan.train_step.lower(
        plan.abstract, plan_lib.abstract_batch(experiment)
    ).as_text()
    features = experiment.model.token_embedder.features
    length = experiment.tokenizer.query_length
    encoded = re.findall(rf'tensor<(\d+)x{length}x{features}xf32>', text)
    assert set(encoded) == {str(rows)}


@pytest.mark.parametrize(
    'value, message',
    [
        ('8.0', r'micro_batch_size is 8\.0; expected a whole number'),
        ('True', 'micro_batch_size is True; expected a whole number'),
        ('0', 'micro_batch_size is 0; expected at least 1'),
        ('-8', 'micro_batch_size is -8; expected at least 1'),
        ('32', 'MICRO_BATCH_SIZE is 32; expected a divisor of BATCH_SIZE, 48'),
        ('96', 'MICRO_BATCH_SIZE is 96; expected a divisor of BATCH_SIZE, 48'),
        ('12', 'MICRO_BATCH_SIZE is 12; expected a multiple of 8, the devices'),
    ],
)
def test_bad_sizes_are_told(value, message):
  with pytest.raises(UserError, match=message):
    plan_lib.make_plan(build(f'MICRO_BATCH_SIZE = {value}'))


def test_sizes_must_not_count_the_devices_of_the_model_axis():
  experiment = build('MICRO_BATCH_SIZE = 12', 'MODEL_PARALLEL = 2')
  plan = plan_lib.make_plan(experiment)
  assert plan.partitioner.mesh.shape == {'data': 4, 'model': 2}
  assert math.gcd(12, 8) == 4
