"""What T5X's trainer is given: batches, parameters, gradients.

T5X is on no package index: without it, what the bridge touches of its interface
stands in; `test_t5x_trainer` runs under the real one.
"""

import importlib.util
import json
import pathlib
import sys
import types
from typing import Any

from flax import core, linen as nn, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_run

from dualenc_jax.cli import saved_run
from dualenc_jax.data.readers import Pairs
from dualenc_jax.training import experiment as experiment_lib
from dualenc_jax.utils.errors import UserError


class BaseTransformerModel:
  """As `t5x.models.BaseTransformerModel`."""

  def __init__(
      self, module, input_vocabulary, output_vocabulary, optimizer_def
  ):
    self.module = module
    self.input_vocabulary = input_vocabulary
    self.output_vocabulary = output_vocabulary
    self.optimizer_def = optimizer_def

  def eval_fn(self, params, batch):
    return self.loss_fn(params, batch, None)


class Rate:
  """As `TimeRate` and `StepsPerTime`, but for the time."""

  @staticmethod
  def from_model_output(value=1.0):
    from clu import metrics as clu_metrics

    value = jnp.asarray([value], jnp.float32)
    return clu_metrics.Average.from_model_output(value)


if importlib.util.find_spec('t5x') is None:
  package = sys.modules['t5x'] = types.ModuleType('t5x')
  for name, members in {
      'models': {'BaseTransformerModel': BaseTransformerModel},
      'metrics': {'TimeRate': Rate, 'StepsPerTime': Rate},
      'optimizers': {'OptimizerDefType': Any},
  }.items():
    module = sys.modules[f't5x.{name}'] = types.ModuleType(f't5x.{name}')
    vars(module).update(members)
    setattr(package, name, module)

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module', autouse=True)
def import_tensorflow():
  """In the one worker that runs these tests: it takes half a gigabyte."""
  global seqio, seqio_adapter, t5x_bridge
  import seqio

  from dualenc_jax import t5x_bridge
  from dualenc_jax.data import seqio_adapter


STEPS, BATCH, QUERY, PASSAGE = 2, 16, 8, 16
LEARNT = (
    'LOSS = @losses.SamToNe()', 'TEMPERATURE = @losses.LearnableTemperature()'
)


def experiment(folder, *bindings, files=()):
  """A run of ours, whose pairs have duplicates and unequal hard negatives."""
  train = tiny_run.write_pairs(folder / 'train.jsonl', STEPS * BATCH)
  rows = [json.loads(line) for line in train.read_text().splitlines()]
  for i in range(0, len(rows), 2):
    rows[i]['query'] = rows[0]['query']
    rows[i]['negatives'] = rows[i]['negatives'][: i % 3]
  train.write_text('\n'.join(map(json.dumps, rows)))
  return saved_run.build_experiment(
      ['runs/finetune.gin', 'models/tiny.gin', *files],
      [
          f'MODEL_DIR = "{folder}/ours"', f'CACHE_DIR = "{folder}/tokens"',
          f'TRAIN_FILE = "{train}"', 'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064', f'STEPS = {STEPS}', f'BATCH_SIZE = {BATCH}',
          f'QUERY_LENGTH = {QUERY}', f'PASSAGE_LENGTH = {PASSAGE}',
          'DTYPE = "float32"', 'DROPOUT_RATE = 0.0', 'EVAL_EVERY = 0',
          'models.T5Encoder.num_layers = 1', *bindings,
      ],
      [],
  )


def t5x_model(run, optimizer=None):
  vocabulary = seqio_adapter.seqio_vocabulary(run.tokenizer.vocabulary)
  return t5x_bridge.DualEncoderModel(
      run.objective, vocabulary, vocabulary, optimizer, run.optimizer.freeze
  )


def ordered(run):
  """The name, in seqio, of the pairs of our run in the order of its steps."""
  path = pathlib.Path(run.task.options['train'])
  rows = path.read_text().splitlines()
  steps = range(run.steps)
  order = [i for s in steps for i in run.batches.indices(s).queries]
  path = path.with_name('ordered.jsonl')
  path.write_text('\n'.join(rows[i] for i in order))
  task = Pairs(train=str(path))
  return t5x_bridge.register(task, run.tokenizer, run.cache_dir)


def batches(run, model):
  dataset = seqio.get_dataset(
      mixture_or_task_name=ordered(run),
      task_feature_lengths={'inputs': QUERY, 'targets': PASSAGE},
      feature_converter=model.FEATURE_CONVERTER_CLS(pack=False),
      dataset_split='train', shuffle=False,
  )
  return list(dataset.batch(BATCH).as_numpy_iterator())


def fresh(run):
  return nn.unbox(jax.jit(run.objective.init)(jax.random.key(0)))


@pytest.mark.parametrize(
    'files, bindings',
    [
        pytest.param(
            ['architectures/ade_spl.gin'],
            [*LEARNT, 'NUM_NEGATIVES = 2', 'LOSS_IMPLEMENTATION = "ring"'],
            id='ade_spl, learnt temperature, negatives',
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ['architectures/ade_fte.gin'], ['MICRO_BATCH_SIZE = 8'],
            id='ade_fte, cached', marks=pytest.mark.nightly,
        ),
    ],
)
def test_steps_are_those_of_our_trainer(tmp_path, files, bindings):
  run = experiment(tmp_path, *bindings, files=files)
  plan = experiment_lib.make_plan(run)
  state, ours = plan.init(), []
  model = t5x_model(run)
  theirs = batches(run, model)
  shapes = {name: x.shape for name, x in theirs[0].items()}
  variables = model.get_initial_variables(jax.random.key(run.seed), shapes)
  params = core.unfreeze(variables['params'])
  transform = run.optimizer.build(params)
  opt_state = transform.init(params)
  start = params

  @jax.jit
  def train(params, opt_state, batch):
    gradient = jax.value_and_grad(model.loss_fn, has_aux=True)
    (_, metrics), grads = gradient(params, batch, jax.random.PRNGKey(1))
    updates, opt_state = transform.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, metrics

  for step, batch in enumerate(theirs):
    state, ours = plan.train_step(
        state, run.partitioner.to_device(run.batches(step))
    )
    params, opt_state, metrics = train(params, opt_state, batch)
    for name in ('loss', 'accuracy', 'masked_fraction', 'temperature'):
      np.testing.assert_allclose(
          metrics[name].compute(), ours[name], rtol=1e-6, atol=1e-5
      )
  assert len(theirs) == STEPS and ours['masked_fraction'] > 0.1
  found, begun = flat(params), flat(start)
  expected = flat(state.params)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
    frozen = files == ['architectures/ade_fte.gin'] and 'embedder' in name
    assert np.array_equal(begun[name], found[name]) == frozen, name


def flat(params):
  return {
      name: np.asarray(value)
      for name, value in traverse_util.flatten_dict(params, sep='/').items()
  }


def test_every_parameter_has_axes_that_t5x_knows(tmp_path):
  run = experiment(tmp_path, *LEARNT)
  variables = t5x_model(run).get_initial_variables(
      jax.random.key(0), {'query_tokens': (BATCH, QUERY)}
  )
  params, axes = (
      traverse_util.flatten_dict(core.unfreeze(variables[name]), sep='/')
      for name in ('params', 'params_axes')
  )
  assert {f'{name}_axes' for name in params} == axes.keys()
  for name, value in params.items():
    assert len(axes[f'{name}_axes'].names) == value.ndim, name
  assert axes['token_embedder/embedding_axes'].names == ('vocab', 'embed')
  assert axes['projection/kernel_axes'].names == ('embed', 'kv')
  assert axes['loss/log_temperature_axes'].names == ()


def test_embeddings_and_scores_are_the_models(tmp_path):
  run = experiment(tmp_path)
  model = t5x_model(run)
  batch, params = batches(run, model)[0], fresh(run)
  query, passage = jax.jit(run.objective.model.apply)(
      {'params': params}, batch['query_tokens'], batch['passage_tokens'][:, 0]
  )
  embedded, aux = jax.jit(model.predict_batch_with_aux)(params, batch)
  assert aux == {}
  np.testing.assert_allclose(embedded[:, 0], query, atol=1e-6)
  np.testing.assert_allclose(embedded[:, 1], passage, atol=1e-6)
  scores = np.sum(np.asarray(query) * np.asarray(passage), axis=1)
  np.testing.assert_allclose(
      jax.jit(model.score_batch)(params, batch), scores, atol=1e-6
  )


def test_dropout_is_drawn_from_t5x_key(tmp_path):
  run = experiment(tmp_path, 'DROPOUT_RATE = 0.2')
  model = t5x_model(run)
  batch, params = batches(run, model)[0], fresh(run)
  keys = [
      jax.random.key_data(jax.random.key(seed, impl='unsafe_rbg'))
      for seed in (0, 1)
  ]
  with jax.default_prng_impl('unsafe_rbg'):
    loss = jax.jit(model.loss_fn)
    first, again, other = (
        float(loss(params, batch, key)[0])
        for key in (keys[0], keys[0], keys[1])
    )
  without = float(jax.jit(model.eval_fn)(params, batch)[0])
  assert first == again
  assert len({first, other, without}) == 3


def test_every_epoch_has_an_order_of_its_own(tmp_path):
  run = experiment(tmp_path)
  name = t5x_bridge.register(run.task, run.tokenizer, run.cache_dir)
  task = seqio.get_mixture_or_task(name)
  dataset = task.source.get_dataset('train', shuffle=True, seed=3)
  first, second = (
      [tuple(row['targets']) for row in dataset.as_numpy_iterator()]
      for _ in range(2)
  )
  assert len(first) == STEPS * BATCH
  assert sorted(first) == sorted(second)
  assert first != second


def test_what_the_loss_cannot_see_is_refused(tmp_path):
  run = experiment(tmp_path)
  model = t5x_model(run)
  model.get_initial_variables(
      jax.random.key(0), {'query_tokens': (BATCH, QUERY)}
  )
  part = {name: x[:8] for name, x in batches(run, model)[0].items()}
  with pytest.raises(UserError, match='num_microbatches'):
    model.loss_fn(fresh(run), part, jax.random.PRNGKey(0))
  with pytest.raises(UserError, match='pack = False'):
    seqio_adapter.PairConverter(pack=True)
  vocabulary = seqio_adapter.seqio_vocabulary(
      type(run.tokenizer.vocabulary)('python_code_8k', extra_ids=100)
  )
  with pytest.raises(UserError, match='8064 rows'):
    t5x_bridge.DualEncoderModel(run.objective, vocabulary, vocabulary, None)
