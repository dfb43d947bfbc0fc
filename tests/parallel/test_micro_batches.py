"""Gradient caching: nothing changes but the memory.

test_layouts_in_step.py has it on a mesh.
"""

import functools
import re

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_training

from dualenc_jax import losses
from dualenc_jax.commands import model_dir
from dualenc_jax.errors import UserError
from dualenc_jax.losses import (
  Embeddings,
  InBatchSoftmax,
  LearnableTemperature,
  Similarity,
)
from dualenc_jax.models import model_params
from dualenc_jax.objectives import contrastive
from dualenc_jax.parallel import partitioning
from dualenc_jax.run import experiment as experiment_lib
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

SIZE = 32
RATE = 0.2
LOSS = InBatchSoftmax()
DENSE = Similarity(LearnableTemperature(0.1))
# The dropout key of the first step with the seed 0.
KEY = jax.random.fold_in(jax.random.key(0), 0)
LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 1e-5


def make_model(**options):
  """SDE with dropout, of one layer: it compiles fast."""
  return tiny_training.make_model(**(dict(dropout_rate=RATE) | options))


@functools.cache
def make_params():
  return tiny_training.init_params(make_model(), LOSS, DENSE)


def value_and_gradients(embed):
  """Of the loss, on one device without a mesh."""

  def loss_fn(params):
    return losses.evaluate(LOSS, DENSE, params['loss'], embed(params))[0]

  return jax.device_get(jax.jit(jax.value_and_grad(loss_fn))(make_params()))


@pytest.mark.slow
def test_equal_to_a_loop_by_hand():
  """No scan, no checkpoint, and none of the step's micro-batches."""
  model = make_model()
  batch = tiny_training.make_tokens(SIZE, 3)
  query_key, passage_key = jax.random.split(KEY)

  def embed(params):
    query, passage, negatives = [], [], []
    for rows in np.split(np.arange(SIZE), [13]):

      def encode(method, tokens, key, numbers):
        return model.apply(
            {'params': model_params(params)}, tokens, dropout_numbers=numbers,
            rngs={'dropout': key}, method=method,
        )

      query.append(
          encode('encode_query', batch['query_tokens'][rows], query_key, rows)
      )
      # Passage i has the number i (1 + K), its hard negatives the next K.
      columns = [batch['passage_tokens'][rows]]
      columns += [batch['negative_tokens'][rows, k] for k in range(3)]
      numbers = np.concatenate([4 * rows + k for k in range(4)])
      embedded = encode(
          'encode_passage', np.concatenate(columns), passage_key, numbers
      )
      first, *others = jnp.split(embedded, 4)
      passage.append(first)
      negatives.append(jnp.stack(others, axis=1))
    return Embeddings(
        *map(jnp.concatenate, (query, passage, negatives)),
        batch['query_ids'], batch['passage_ids'], batch['negative_ids'],
        (batch['negative_tokens'] != 0).any(axis=-1),
    )

  expected_loss, expected = value_and_gradients(embed)
  of_step = tiny_training.make_batch(SIZE, 3)
  loss, gradients = value_and_gradients(
      lambda params: contrastive.embed(model, params, of_step, KEY, 1)
  )
  np.testing.assert_allclose(loss, expected_loss, rtol=LOSS_TOLERANCE)
  for path, got, want in zip(
      partitioning.leaf_paths(expected), jax.tree.leaves(gradients),
      jax.tree.leaves(expected), strict=True,
  ):
    scale = np.abs(want).max()
    assert scale > 0, path
    error = np.abs(got - want).max() / scale
    assert error < GRADIENT_TOLERANCE, f'{path}: {error:.2e}'


def test_every_row_of_every_micro_batch_has_dropout_of_its_own():
  batch = tiny_training.padded({
      name: np.broadcast_to(tokens[:1, ..., :1], tokens.shape)
      for name, tokens in tiny_training.make_tokens(8, 2).items()
  })
  embeddings = jax.jit(
      lambda params: contrastive.embed(make_model(), params, batch, KEY, 2)
  )(make_params())
  negatives = embeddings.negatives.reshape(16, -1)
  rows = np.concatenate([embeddings.query, embeddings.passage, negatives])
  distance = np.abs(rows[:, None] - rows).max(axis=-1) + np.eye(len(rows))
  assert distance.min() > 1e-3


class Product:
  """A loss that moves nothing but sums between devices."""

  def init(self):
    return {}

  def __call__(self, params, batch, similarity):
    del params, similarity
    value = jnp.mean(batch.query * batch.passage)
    value -= jnp.mean(batch.query[:, None] * batch.negatives)
    return value, {'loss': value}


def trace_step(partitioner, size, batch_size, **options):
  abstract, _, step = tiny_training.plan(
      partitioner, model=make_model(**options), loss=Product(),
      micro_batch_size=size,
  )
  batch = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
      tiny_training.make_batch(batch_size, 3),
  )
  return step.trace(abstract, batch)


def compile_step(*args, **options):
  return trace_step(*args, **options).lower().compile()


def test_gradients_are_summed_once_and_no_row_leaves_its_device():
  """Of both towers and all three micro-batches together, in float32."""
  compiled = compile_step(Partitioner(), 16, 48, dtype='bfloat16').as_text()
  sums = [
      type_ for name, type_ in hlo.collectives(compiled)
      if name == 'all-reduce'
  ]
  assert 'bf16' not in ' '.join(sums)
  parameters = sum(x.nbytes for x in jax.tree.leaves(make_params()))
  sent = hlo.sent_bytes(compiled, 'all-reduce')
  # With the loss and its metrics.
  assert parameters <= sent < 1.1 * parameters
  assert {name for name, _ in hlo.collectives(compiled)} == {'all-reduce'}


@pytest.mark.slow
def test_memory_falls_with_the_micro_batch():
  temporaries = [
      compile_step(tiny_training.OneDevice(), size, batch_size=512)
      .memory_analysis()
      .temp_size_in_bytes
      for size in (None, 32)
  ]
  # A 16th of the activations, and the embeddings of all.
  assert temporaries[1] < temporaries[0] / 8


def build(*bindings):
  return model_dir.build_experiment(
      ['runs/quickstart.gin', 'models/tiny.gin'],
      [
          'MODEL_DIR = "x"', 'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064', 'BATCH_SIZE = 48', 'LAYOUT = @data.Padded()',
          *bindings,
      ],
      [],
  )


def check_batch(*bindings):
  experiment = build(*bindings)
  experiment.objective.check_batch(experiment)


def test_the_gin_macro_reaches_the_step():
  # Of each of 8 devices.
  experiment = build('MICRO_BATCH_SIZE = 16')
  plan = experiment_lib.make_plan(experiment)
  text = plan.train_step.lower(
      plan.abstract, experiment.objective.abstract_batch(experiment)
  ).as_text()
  features = experiment.objective.model.token_embedder.features
  length = experiment.tokenizer.query_length
  encoded = re.findall(rf'tensor<(\d+)x{length}x{features}xf32>', text)
  assert min(map(int, encoded)) == 2


@pytest.mark.parametrize(
    'value, message',
    [
        ('8.0', r'MICRO_BATCH_SIZE\) is 8\.0; expected a whole number'),
        ('96', 'MICRO_BATCH_SIZE is 96; expected a divisor of BATCH_SIZE, 48'),
        ('12', 'MICRO_BATCH_SIZE is 12; expected a multiple of 8, the devices'),
    ],
)
def test_bad_sizes_are_named(value, message):
  with pytest.raises(UserError, match=message):
    check_batch(f'MICRO_BATCH_SIZE = {value}')


def test_a_batch_that_does_not_divide_is_no_matter_in_evaluation():
  # The model axis does not count.
  check_batch('MICRO_BATCH_SIZE = 12', 'MODEL_PARALLEL = 2')
  with pytest.raises(UserError, match='BATCH_SIZE is 12; expected a multiple'):
    check_batch('BATCH_SIZE = 12')
  experiment_lib.make_plan(build('BATCH_SIZE = 12'))
