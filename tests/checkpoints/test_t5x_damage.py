"""Damaged checkpoints of T5X and those of other models: one clear error."""

import re
import shutil

from flax import serialization
import numpy as np
import orbax.checkpoint as ocp
import pytest
import t5x_files

from dualenc_jax.checkpoints import t5x
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import zarr_files

WO = 'encoder/layers_1/mlp/wo/kernel'


def read_all(path):
  weights = t5x.read(path)
  return {name: tensor.read() for name, tensor in weights.tensors.items()}


def assert_refused(path, *words):
  with pytest.raises(UserError) as e:
    read_all(path)
  message = str(e.value)
  for word in (str(path), *words):
    assert word in message, message
  assert len(message) < 900 and '\n' not in message


@pytest.fixture
def copied(tmp_path):
  """A golden checkpoint to damage."""
  folder = tmp_path / 'checkpoint_1000'
  shutil.copytree(t5x_files.GOLDEN / 't5_1_0_tiny' / t5x_files.LEGACY, folder)
  return folder


@pytest.fixture
def written(tmp_path):
  """Writes a golden checkpoint with other parameters."""

  def write(remove='^$', **others):
    arrays = t5x_files.parameters('t5_1_0_tiny')
    kept = {k: v for k, v in arrays.items() if not re.search(remove, k)}
    state = others.pop('state', None)
    t5x_files.write_legacy(
        tmp_path / 'checkpoint_7', kept | others.pop('add', {}), state, **others
    )
    return tmp_path / 'checkpoint_7'

  return write


KERNEL = 'target.encoder.layers_1.mlp.wo.kernel'
TABLE = 'target.token_embedder.embedding'


def cut(folder):
  file = folder / 'checkpoint'
  file.write_bytes(file.read_bytes()[:20000])


def of_another_shape(folder):
  shutil.rmtree(folder / KERNEL)
  shutil.copytree(folder / TABLE, folder / KERNEL)


@pytest.mark.parametrize(
    'damage, words',
    [
        # Not taken for zeros.
        (lambda f: (f / KERNEL / '0.0').unlink(),
         ['layers_1.mlp.wo.kernel cannot be read', 'missing']),
        (of_another_shape, ['wo.kernel has the shape (512, 32)', '(64, 32)']),
        (cut, ['cannot be read as msgpack', 'Copy the']),
    ],
)
def test_damage(copied, damage, words):
  damage(copied)
  assert_refused(copied, *words)


def test_no_checkpoint_of_t5x(tmp_path, copied):
  content = serialization.msgpack_serialize({'params': {'kernel': np.ones(3)}})
  (tmp_path / 'checkpoint').write_bytes(content)
  assert_refused(tmp_path, 'that T5X wrote', 'optimizer/target')
  # A broken newest checkpoint is not passed over.
  (tmp_path / 'checkpoint').unlink()
  (tmp_path / 'checkpoint_2000').mkdir()
  assert_refused(tmp_path, 'checkpoint_2000 is not a T5X checkpoint')


STACK = 'encoder/encoder/mlp/wo/kernel'
INNER = 'encoder/token_embedder/embedding'
STATE = 'param_states/encoder/layers_2/mlp/wo/kernel/v'


@pytest.mark.parametrize(
    'parameters, words',
    [
        ({'remove': 'token_embedder'},
         ['no token embeddings (target/token_emb', 'it holds encoder']),
        ({'add': {INNER: np.zeros((512, 32), 'f4')}},
         [f'both {INNER} and token_embedder/embedding']),
        ({'add': {'encoder/layers_1/attention/query/bias': np.zeros(32, 'f4')}},
         ['layers_1.attention.query.bias is of no use']),
        ({'add': {WO: np.zeros((32, 64), 'f4')}},
         [WO, 'the shape (32, 64)', 'expected (64, 32)']),
        ({'remove': 'layers_1/'},
         ['of 3 layers', 'encoder/layers_1/attention/query/kernel is missing',
          'and 3 more']),
        ({'remove': 'layers_2/', 'state': {STATE: np.zeros((64, 32))}},
         ['missing parameter target/encoder/layers_2/mlp/wo/kernel']),
        ({'add': {'encoder/layers_0/relpos_bias/rel_embedding': np.zeros(
            (4, 32), 'f4')}}, ['layers_0.relpos_bias.rel_embedding is of no']),
    ],
)
def test_parameters_of_something_else(written, parameters, words):
  assert_refused(written(**parameters), *words)


NORM = 'encoder/encoder/pre_attention_layer_norm/scale'


@pytest.mark.parametrize(
    'layers, changes, words',
    [
        (32, {}, ['layer_norm.scale has the shape (32, 32)', 'is ambiguous']),
        (3, {NORM: np.zeros((31, 3), 'f4')},
         ['the shape (31, 3)', 'is ambiguous', 'width, 32']),
        (3, {STACK: np.zeros((64, 2, 32), 'f4')},
         ['wo.kernel has the shape (64, 2, 32); expected 3']),
    ],
)
def test_stacks_of_other_shapes(written, layers, changes, words):
  stacks = {
      path.replace('layers_0', 'encoder'): np.stack([array] * layers, 1)
      for path, array in t5x_files.parameters('t5_1_0_tiny').items()
      if 'layers_0' in path
  }
  assert_refused(written(remove='layers_', add=stacks | changes), *words)


def test_an_entry_is_read_without_the_others(tmp_path):
  ocp.PyTreeCheckpointer(use_ocdbt=False, use_zarr3=False).save(
      tmp_path / 'item', {'stack': np.arange(6.0).reshape(3, 2)},
      save_args={'stack': ocp.SaveArgs(chunk_byte_size=16)},
  )
  (tmp_path / 'item' / 'stack' / '1.0').unlink()
  stack = zarr_files.read_tree(tmp_path / 'item')['stack']
  np.testing.assert_array_equal(stack.entry(0, 2).read(), [4.0, 5.0])
  with pytest.raises(UserError, match=r'item: stack\[1\] cannot be read.*1\.0'):
    stack.entry(0, 1).read()


@pytest.mark.parametrize(
    'lost, message',
    [
        ('_METADATA', 'it has no _METADATA. Give a folder'),
        ('manifest.ocdbt', 'state cannot be opened: .*copy the folder again'),
        ('ocdbt.process_0/d', 'embedding cannot be read: .*copy it again'),
    ],
)
def test_lost_files(tmp_path, lost, message):
  folder = tmp_path / 'state'
  shutil.copytree(t5x_files.GOLDEN / 't5_1_0_tiny' / t5x_files.STATE, folder)
  (folder / lost).rename(tmp_path / 'lost')
  with pytest.raises(UserError, match=message):
    zarr_files.read_tree(folder)['target/token_embedder/embedding'].read()
