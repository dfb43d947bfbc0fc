"""T5X's own trainer and checkpoints beside ours.

Collected where T5X is installed; `test_t5x_bridge` needs none, and has the
steps.
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import sentencepiece
from t5x import adafactor, checkpoints, partitioning, utils
import test_t5x_bridge as bridge
import tiny_run

from dualenc_jax.checkpoints import t5x as t5x_reader, t5x_legacy

pytestmark = [pytest.mark.nightly, pytest.mark.devices(8)]
ROOT = pathlib.Path(__file__).parents[1]
import_tensorflow = bridge.import_tensorflow


class DataAndModel(partitioning.PjitPartitioner):
  """A mesh of 4 x 2; T5X would put all CPU devices on the model axis."""

  @property
  def mesh(self):
    return jax.sharding.Mesh(
        np.array(jax.devices()).reshape(4, 2), ('data', 'model')
    )


def test_t5x_restores_what_we_write(tmp_path):
  run = bridge.experiment(
      tmp_path, 'MODEL_PARALLEL = 2', files=['architectures/ade.gin']
  )
  model = bridge.t5x_model(run, adafactor.Adafactor())
  partitioner = DataAndModel(num_partitions=2)
  initializer = utils.TrainStateInitializer(
      model.optimizer_def, model.get_initial_variables,
      {'query_tokens': (bridge.BATCH, bridge.QUERY)}, partitioner,
  )
  state = initializer.from_scratch(jax.random.PRNGKey(0))
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
  expected = bridge.flat(state.params)
  for params in (loaded, restored.params):
    found = bridge.flat(params)
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
