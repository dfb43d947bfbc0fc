"""T5X's own trainer, partitioner and data pipeline beside ours.

Collected where T5X is installed; `test_t5x_bridge` needs none.
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
import sentencepiece
from t5x import (
  adafactor,
  checkpoints,
  partitioning,
  trainer as trainer_lib,
  utils,
)
import test_t5x_bridge as bridge
from test_t5x_bridge import BATCH, flat, LEARNT, STEPS, t5x_model
import tiny_run

from dualenc_jax.interop import t5x as t5x_reader, t5x_legacy
from dualenc_jax.run import experiment as experiment_lib

pytestmark = [pytest.mark.nightly, pytest.mark.devices(8)]
ROOT = pathlib.Path(__file__).parents[1]


def experiment(folder, *bindings, files=()):
  return bridge.experiment(
      folder, 'models.T5Encoder.num_layers = 2', 'MODEL_PARALLEL = 2',
      *bindings, files=files,
  )


class DataAndModel(partitioning.PjitPartitioner):
  """A mesh of 4 x 2; T5X would put all CPU devices on the model axis."""

  @property
  def mesh(self):
    return jax.sharding.Mesh(
        np.array(jax.devices()).reshape(4, 2), ('data', 'model')
    )


def t5x_batches(run, model):
  """T5X's batches of the pairs of our run, in the order of its steps."""
  lengths = {'inputs': bridge.QUERY, 'targets': bridge.PASSAGE}
  config = utils.DatasetConfig(
      bridge.ordered(run), task_feature_lengths=lengths, split='train',
      batch_size=BATCH, shuffle=False, seed=0,
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
      model.optimizer_def, model.get_initial_variables,
      {name: value.shape for name, value in batch.items()}, partitioner,
  )
  state = initializer.from_scratch(jax.random.PRNGKey(0))
  return partitioner, initializer, state


def t5x_trainer(model, batch):
  partitioner, initializer, state = t5x_start(model, batch)
  return trainer_lib.Trainer(
      model, state, partitioner, eval_names=[], summary_dir=None,
      train_state_axes=initializer.train_state_axes, rng=jax.random.PRNGKey(1),
      learning_rate_fn=optax.linear_schedule(1e-3, 0.0, STEPS),
  )


def test_steps_are_those_of_our_trainer(tmp_path):
  run = experiment(
      tmp_path, *LEARNT, 'NUM_NEGATIVES = 2', 'LOSS_IMPLEMENTATION = "ring"',
      files=['architectures/ade_spl.gin'],
  )
  plan = experiment_lib.make_plan(run)
  state, ours = plan.init(), []
  for step in range(STEPS):
    batch = run.partitioner.to_device(run.batches(step))
    state, metrics = plan.train_step(state, batch)
    ours.append({name: np.asarray(x) for name, x in metrics.items()})

  model = t5x_model(run, adafactor.Adafactor())
  batches = t5x_batches(run, model)
  with t5x_trainer(model, batches[0]) as trainer:
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


def test_what_t5x_saves_by_orbax_is_read(tmp_path):
  run = experiment(tmp_path, files=['architectures/ade.gin'])
  model = t5x_model(run, adafactor.Adafactor())
  partitioner, initializer, state = t5x_start(model, t5x_batches(run, model)[0])
  folder = tmp_path / 'theirs'
  folder.mkdir()
  manager = checkpoints.OrbaxCheckpointManagerInterface(
      str(folder), initializer.global_train_state_shape, partitioner
  )
  manager.save(state)
  manager.wait_until_finished()
  weights = t5x_reader.read(folder / 'checkpoint_0')
  expected = flat(state.params)
  assert weights.tensors.keys() == expected.keys()
  for name, tensor in weights.tensors.items():
    np.testing.assert_array_equal(tensor.read(), expected[name])


def test_t5x_restores_what_we_write(tmp_path):
  run = experiment(tmp_path, files=['architectures/ade.gin'])
  model = t5x_model(run, adafactor.Adafactor())
  partitioner, initializer, state = t5x_start(model, t5x_batches(run, model)[0])
  first, ours = tmp_path / 'first', tmp_path / 'ours'
  shapes = initializer.global_train_state_shape
  checkpoints.Checkpointer(shapes, partitioner, str(first)).save(state)
  ours.mkdir()
  t5x_legacy.write(t5x_reader.read(first / 'checkpoint_0'), ours)
  path = str(ours / 'checkpoint_0')

  loaded = checkpoints.load_t5x_checkpoint(path)['target']
  config = utils.RestoreCheckpointConfig(
      path, mode='specific', assignment_map=[('state/.*', None)],
      fallback_to_scratch=True,
  )
  key = jax.random.PRNGKey(7)
  restored = initializer.from_checkpoint([config], init_rng=key)
  expected = flat(state.params)
  for params in (loaded, restored.params):
    found = flat(params)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value)


def test_gin_file_trains_from_a_t5_under_t5x(tmp_path, shared):
  train = tiny_run.write_pairs(tmp_path / 'train.jsonl', 32)
  golden = shared / 'golden' / 't5_1_1_tiny'
  sizes = json.loads((golden / 'config.json').read_text())
  sentencepiece.SentencePieceTrainer.train(
      input=str(train), model_prefix=str(tmp_path / 'small'),
      vocab_size=sizes['vocab_size'], hard_vocab_limit=False,
      pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
  )
  flags = {
      'MODEL_DIR': f"'{tmp_path}/model'",
      'TRAIN_FILE': f"'{train}'",
      'VOCABULARY': f"'{tmp_path}/small.model'",
      'INITIAL_CHECKPOINT_PATH': f"'{golden}/t5x_legacy/checkpoint_1000'",
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
      capture_output=True, text=True, timeout=180,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  end = t5x_reader.read(tmp_path / 'model' / 'checkpoint_2')
  assert end.step == 2
  assert end.tensors['projection/kernel'].shape == (sizes['emb_dim'], 16)
  start = t5x_reader.read(golden / 't5x_legacy' / 'checkpoint_1000')
  assert len(start.tensors) > 20
  for name, tensor in start.tensors.items():
    np.testing.assert_array_equal(end.tensors[name].read(), tensor.read())
