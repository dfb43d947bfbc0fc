"""T5X's own trainer, partitioner and data pipeline beside ours."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip('t5x', reason='t5x is not installed')

# ruff: noqa: E402
from flax import linen as nn, traverse_util
import jax
import numpy as np
import optax
import sentencepiece
import seqio
from t5x import (
  adafactor,
  checkpoints,
  partitioning,
  trainer as trainer_lib,
  utils,
)
import tensorflow as tf
import tiny_run

from dualenc_jax import t5x_bridge
from dualenc_jax.commands import model_dir
from dualenc_jax.data import seqio_adapter
from dualenc_jax.errors import UserError
from dualenc_jax.interop import t5x as t5x_reader, t5x_write
from dualenc_jax.run import plan as plan_lib
from dualenc_jax.training.step import init_params

ROOT = pathlib.Path(__file__).parents[1]
STEPS, BATCH, QUERY, PASSAGE = 5, 16, 8, 16
LEARNT = (
    'LOSS = @losses.SamToNe()',
    'TEMPERATURE = @losses.LearnableTemperature()',
)


class DataAndModel(partitioning.PjitPartitioner):
  """A mesh of 4 x 2; T5X would put all CPU devices on the model axis."""

  @property
  def mesh(self):
    return jax.sharding.Mesh(
        np.array(jax.devices()).reshape(4, 2), ('data', 'model')
    )


def experiment(folder, *bindings, files=()):
  """A run of ours, whose pairs have duplicates and unequal hard negatives."""
  train = tiny_run.write_pairs(folder / 'train.jsonl', STEPS * BATCH)
  rows = [json.loads(line) for line in train.read_text().splitlines()]
  for i in range(0, len(rows), 2):
    rows[i]['query'] = rows[0]['query']
    rows[i]['negatives'] = rows[i]['negatives'][: i % 3]
  train.write_text('\n'.join(map(json.dumps, rows)))
  return model_dir.build_experiment(
      ['runs/finetune.gin', 'models/tiny.gin', *files],
      [
          f'MODEL_DIR = "{folder}/ours"',
          f'CACHE_DIR = "{folder}/tokens"',
          f'TRAIN_FILE = "{train}"',
          'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064',
          f'STEPS = {STEPS}',
          f'BATCH_SIZE = {BATCH}',
          f'QUERY_LENGTH = {QUERY}',
          f'PASSAGE_LENGTH = {PASSAGE}',
          'DTYPE = "float32"',
          'DROPOUT_RATE = 0.0',
          'MODEL_PARALLEL = 2',
          'EVAL_EVERY = 0',
          *bindings,
      ],
      [],
  )


def t5x_model(run, **options):
  vocabulary = seqio_adapter.seqio_vocabulary(run.tokenizer.vocabulary)
  return t5x_bridge.DualEncoderModel(
      run.model,
      run.loss,
      run.similarity,
      vocabulary,
      vocabulary,
      adafactor.Adafactor(),
      num_negatives=run.num_negatives,
      **options,
  )


def t5x_batches(run, model):
  """T5X's batches of the pairs of our run, in the order of its steps."""
  path = pathlib.Path(run.task.options['train'])
  rows = path.read_text().splitlines()
  order = [i for s in range(STEPS) for i in run.batches.picker(s).queries]
  ordered = path.with_name('ordered.jsonl')
  ordered.write_text('\n'.join(rows[i] for i in order))
  task = type(run.task)('pairs', {'train': str(ordered)})
  config = utils.DatasetConfig(
      t5x_bridge.register(task, run.tokenizer, run.cache_dir),
      task_feature_lengths={'inputs': QUERY, 'targets': PASSAGE},
      split='train',
      batch_size=BATCH,
      shuffle=False,
      seed=0,
  )
  utils.verify_matching_vocabs(config, model)
  dataset = utils.get_dataset(
      config, 0, 1, model.FEATURE_CONVERTER_CLS, num_epochs=1
  )
  return list(dataset.as_numpy_iterator())


def t5x_start(model, batch):
  """T5X's partitioner, initialiser and state; parameters of seed 0."""
  partitioner = DataAndModel(num_partitions=2)
  initializer = utils.TrainStateInitializer(
      model.optimizer_def,
      model.get_initial_variables,
      {name: value.shape for name, value in batch.items()},
      partitioner,
  )
  return (
      partitioner,
      initializer,
      initializer.from_scratch(jax.random.PRNGKey(0)),
  )


def t5x_trainer(model, batch, num_microbatches=None):
  partitioner, initializer, state = t5x_start(model, batch)
  return trainer_lib.Trainer(
      model,
      state,
      partitioner,
      eval_names=[],
      summary_dir=None,
      train_state_axes=initializer.train_state_axes,
      rng=jax.random.PRNGKey(1),
      learning_rate_fn=optax.linear_schedule(1e-3, 0.0, STEPS),
      num_microbatches=num_microbatches,
  )


def flat(params):
  return {
      '/'.join(path): np.asarray(value)
      for path, value in traverse_util.flatten_dict(dict(params)).items()
  }


@pytest.mark.parametrize(
    'files, bindings',
    [
        (['losses/softmax.gin'], []),
        (
            ['architectures/ade_spl.gin'],
            [*LEARNT, 'NUM_NEGATIVES = 2', 'LOSS_IMPLEMENTATION = "ring"'],
        ),
        (['architectures/ade_fte.gin'], ['MICRO_BATCH_SIZE = 8']),
    ],
    ids=['sde', 'ade_spl, learnt temperature, negatives', 'ade_fte, cached'],
)
def test_five_steps_are_those_of_our_trainer(tmp_path, files, bindings):
  run = experiment(tmp_path, *bindings, files=files)
  plan = plan_lib.make_plan(run)
  state, ours = plan.init(), []
  for step in range(STEPS):
    batch = plan.partitioner.to_device(run.batches(step))
    state, metrics = plan.train_step(state, batch)
    ours.append({name: np.asarray(x) for name, x in metrics.items()})

  model = t5x_model(
      run,
      freeze=run.optimizer.freeze,
      micro_batch_size=run.micro_batch_size,
  )
  batches = t5x_batches(run, model)
  with t5x_trainer(model, batches[0]) as trainer:
    start = flat(trainer.train_state.params)
    theirs = [trainer.train(iter([b]), 1).result() for b in batches]
  end = flat(trainer.train_state.params)

  assert ours[0]['masked_fraction'] > 0.1
  assert len(theirs) == STEPS
  for mine, other in zip(ours, theirs):
    for name in ('loss', 'accuracy', 'masked_fraction', 'temperature'):
      np.testing.assert_allclose(
          other[name].value, mine[name], rtol=1e-6, atol=1e-5
      )
    np.testing.assert_allclose(
        other['learning_rate'].value, mine['learning_rate'], rtol=1e-6
    )
  expected = flat(state.params)
  assert end.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(end[name], value, atol=1e-5, err_msg=name)
    frozen = files == ['architectures/ade_fte.gin'] and 'embedder' in name
    assert np.array_equal(start[name], value) == frozen, name


def test_parameters_are_split_by_t5x_rules(tmp_path):
  run = experiment(tmp_path, *LEARNT)
  model = t5x_model(run)
  _, _, state = t5x_start(model, t5x_batches(run, model)[0])
  specs = {
      name: tuple(x.sharding.spec)
      for name, x in traverse_util.flatten_dict(
          dict(state.params), sep='/'
      ).items()
  }
  assert specs['token_embedder/embedding'][0] == 'model'
  assert specs['encoder/layers_0/mlp/wo/kernel'][0] == 'model'
  assert specs['encoder/layers_1/attention/query/kernel'][1] == 'model'
  assert not any(specs['projection/kernel'])
  assert specs['loss/log_temperature'] == ()


def test_embeddings_and_scores_are_the_models(tmp_path):
  run = experiment(tmp_path)
  model = t5x_model(run)
  batch = t5x_batches(run, model)[0]
  params = nn.unbox(init_params(run.model, run.loss, run.similarity, 0))
  query, passage = jax.jit(run.model.apply)(
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


@pytest.mark.parametrize('implementation', ['threefry2x32', 'unsafe_rbg'])
def test_dropout_is_drawn_from_t5x_key(tmp_path, implementation):
  run = experiment(tmp_path, 'DROPOUT_RATE = 0.2')
  model = t5x_model(run)
  batch = t5x_batches(run, model)[0]
  params = nn.unbox(init_params(run.model, run.loss, run.similarity, 0))
  keys = [
      jax.random.key_data(jax.random.key(seed, impl=implementation))
      for seed in (0, 1)
  ]
  with jax.default_prng_impl(implementation):
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


@pytest.mark.parametrize('orbax', [False, True])
def test_what_t5x_saves_is_read(tmp_path, orbax):
  run = experiment(tmp_path, files=['architectures/ade.gin'])
  model = t5x_model(run)
  partitioner, initializer, state = t5x_start(
      model, t5x_batches(run, model)[0]
  )
  folder = tmp_path / 'theirs'
  folder.mkdir()
  if orbax:
    manager = checkpoints.OrbaxCheckpointManagerInterface(
        str(folder), initializer.global_train_state_shape, partitioner
    )
    manager.save(state)
    manager.wait_until_finished()
  else:
    checkpoints.Checkpointer(
        initializer.global_train_state_shape, partitioner, str(folder)
    ).save(state)
  weights = t5x_reader.read(folder / 'checkpoint_0')
  expected = flat(state.params)
  assert weights.tensors.keys() == expected.keys()
  for name, tensor in weights.tensors.items():
    np.testing.assert_array_equal(tensor.read(), expected[name])


def test_t5x_restores_what_we_write(tmp_path):
  run = experiment(tmp_path, files=['architectures/ade.gin'])
  model = t5x_model(run)
  partitioner, initializer, state = t5x_start(
      model, t5x_batches(run, model)[0]
  )
  first, ours = tmp_path / 'first', tmp_path / 'ours'
  shapes = initializer.global_train_state_shape
  checkpoints.Checkpointer(shapes, partitioner, str(first)).save(state)
  ours.mkdir()
  t5x_write.write(t5x_reader.read(first / 'checkpoint_0'), ours)
  path = str(ours / 'checkpoint_0')

  loaded = checkpoints.load_t5x_checkpoint(path)['target']
  restored = initializer.from_checkpoint(
      [
          utils.RestoreCheckpointConfig(
              path,
              mode='specific',
              assignment_map=[('state/.*', None)],
              fallback_to_scratch=True,
          )
      ],
      init_rng=jax.random.PRNGKey(7),
  )
  expected = flat(state.params)
  for params in (loaded, restored.params):
    found = flat(params)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value)


def test_split_batches_are_refused(tmp_path):
  run = experiment(tmp_path)
  model = t5x_model(run)
  batch = t5x_batches(run, model)[0]
  with t5x_trainer(model, batch, num_microbatches=2) as trainer:
    with pytest.raises(UserError, match='num_microbatches'):
      trainer.train(iter([batch]), 1)


def test_packing_is_refused():
  with pytest.raises(UserError, match='pack = False'):
    seqio_adapter.PairConverter(pack=True)


def test_missing_negatives_are_refused():
  rows = {'inputs': np.ones((2, 3), np.int32)}
  dataset = tf.data.Dataset.from_tensor_slices(rows | {'targets': [[1], [2]]})
  converter = seqio_adapter.PairConverter(num_negatives=1)
  with pytest.raises(UserError, match='no feature negatives'):
    converter(dataset, {'inputs': 3, 'targets': 1})


def test_vocabulary_larger_than_its_table_is_refused(tmp_path):
  run = experiment(tmp_path)
  vocabulary = seqio_adapter.seqio_vocabulary(
      type(run.tokenizer.vocabulary)('python_code_8k', extra_ids=100)
  )
  with pytest.raises(UserError, match='8064 rows'):
    t5x_bridge.DualEncoderModel(
        run.model, run.loss, vocabulary, vocabulary, adafactor.Adafactor()
    )


@pytest.mark.parametrize('form', ['t5x_legacy', 't5x_orbax'])
def test_gin_file_trains_from_a_t5_under_t5x(tmp_path, shared, form):
  train = tiny_run.write_pairs(tmp_path / 'train.jsonl', 32)
  golden = shared / 'golden' / 't5_1_1_tiny'
  sizes = json.loads((golden / 'config.json').read_text())
  sentencepiece.SentencePieceTrainer.train(
      input=str(train),
      model_prefix=str(tmp_path / 'small'),
      vocab_size=sizes['vocab_size'],
      hard_vocab_limit=False,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
  )
  flags = {
      'MODEL_DIR': f"'{tmp_path}/model'",
      'TRAIN_FILE': f"'{train}'",
      'VOCABULARY': f"'{tmp_path}/small.model'",
      'INITIAL_CHECKPOINT_PATH': f"'{golden}/{form}/checkpoint_1000'",
      'VOCAB_SIZE': sizes['vocab_size'],
      'models.TokenEmbedder.features': sizes['emb_dim'],
      'models.T5Encoder.num_layers': sizes['num_encoder_layers'],
      'models.T5Encoder.num_heads': sizes['num_heads'],
      'models.T5Encoder.head_dim': sizes['head_dim'],
      'models.T5Encoder.mlp_dim': sizes['mlp_dim'],
      'models.Projection.features': 16,
      'STEPS': 2,
      'LEARNING_RATE': 0.0,
      'BATCH_SIZE': 8,
      'QUERY_LENGTH': 8,
      'PASSAGE_LENGTH': 16,
      'EVAL_EVERY': 0,
  }
  done = subprocess.run(
      [
          sys.executable,
          *('-m', 't5x.train', f'--gin_search_paths={ROOT}/gin'),
          '--gin_file=t5x/finetune_dual_encoder.gin',
          '--gin_file=losses/samtone.gin',
          *(f'--gin.{name}={value}' for name, value in flags.items()),
      ],
      env=os.environ | {'XLA_FLAGS': '', 'PYTHONPATH': str(ROOT)},
      capture_output=True,
      text=True,
      timeout=180,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  end = t5x_reader.read(tmp_path / 'model' / 'checkpoint_2')
  assert end.step == 2
  assert end.tensors['projection/kernel'].shape == (sizes['emb_dim'], 16)
  start = t5x_reader.read(golden / form / 'checkpoint_1000')
  assert len(start.tensors) > 20
  for name, tensor in start.tensors.items():
    np.testing.assert_array_equal(end.tensors[name].read(), tensor.read())
