"""Gradient caching: dropout, what devices send, memory, and sizes.

test_layouts_in_step.py compares gradients.
"""

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_training

from dualenc_jax.cli import saved_run
from dualenc_jax.losses import Loss
from dualenc_jax.objectives import encoding
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)


def make_model(**options):
  return tiny_training.make_model(dropout_rate=0.2, **options)


def make_params():
  return tiny_training.init_params(make_model())


def test_every_row_of_every_micro_batch_has_dropout_of_its_own():
  batch = tiny_training.padded({
      name: np.broadcast_to(tokens[:1, ..., :1], tokens.shape)
      for name, tokens in tiny_training.make_tokens(8, 2).items()
  })
  key = jax.random.key(0)
  embeddings = jax.jit(
      lambda params: encoding.embed(make_model(), params, batch, key, 2)
  )(make_params())
  negatives = embeddings.negatives.reshape(16, -1)
  rows = np.concatenate([embeddings.query, embeddings.passage, negatives])
  distance = np.abs(rows[:, None] - rows).max(axis=-1) + np.eye(len(rows))
  assert distance.min() > 1e-3


class Product(Loss):
  """A loss that moves nothing but sums between devices."""

  def __call__(self, params, batch, similarity):
    del params, similarity
    value = jnp.mean(batch.query * batch.passage)
    value -= jnp.mean(batch.query[:, None] * batch.negatives)
    return value, {'loss': value}


def trace_step(partitioner, size, batch_size, **options):
  abstract, _, step, _ = tiny_training.plan(
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


@pytest.mark.nightly
def test_gradients_are_summed_once_and_no_row_leaves_its_device():
  """Of both towers and all three micro-batches together, in float32."""
  compiled = compile_step(Partitioner(), 16, 48, dtype='bfloat16').as_text()
  for name, type_ in hlo.collectives(compiled):
    assert name == 'all-reduce' and 'bf16' not in type_
  parameters = sum(x.nbytes for x in jax.tree.leaves(make_params()))
  sent = hlo.sent_bytes(compiled, 'all-reduce')
  # With the loss and its metrics.
  assert parameters <= sent < 1.1 * parameters


@pytest.mark.nightly
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
  return saved_run.build_experiment(
      ['runs/quickstart.gin', 'models/tiny.gin'],
      [
          'MODEL_DIR = "x"', 'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064', 'BATCH_SIZE = 48', 'LAYOUT = @data.Padded()',
          *bindings,
      ],
      [],
  )


@pytest.mark.parametrize(
    'value, message',
    [
        ('8.0', r'MICRO_BATCH_SIZE is 8\.0; expected a whole number'),
        ('96', 'MICRO_BATCH_SIZE is 96; expected a divisor of BATCH_SIZE, 48'),
        ('12', 'MICRO_BATCH_SIZE is 12; expected a multiple of 8, the devices'),
    ],
)
def test_bad_sizes_are_named(value, message):
  with pytest.raises(UserError, match=message):
    experiment = build(f'MICRO_BATCH_SIZE = {value}')
    experiment.objective.check_batch(experiment)
