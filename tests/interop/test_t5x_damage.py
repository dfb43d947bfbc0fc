"""Damaged checkpoints of T5X and those of other models: one clear error."""

import re
import shutil

from flax import serialization
import numpy as np
import pytest
import t5x_files

from dualenc_jax.errors import UserError
from dualenc_jax.interop import t5x

WO = 'encoder/layers_1/mlp/wo/kernel'
BIAS = 'encoder/relpos_bias/rel_embedding'


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


def test_lost_zarr_folder(copied):
  shutil.rmtree(copied / 'target.encoder.layers_1.mlp.wo.kernel')
  assert_refused(copied, 'layers_1.mlp.wo.kernel cannot be read', 'copy it')


def test_lost_chunk_is_not_taken_for_zeros(copied):
  (copied / 'target.encoder.layers_1.mlp.wo.kernel' / '0.0').unlink()
  assert_refused(copied, 'layers_1.mlp.wo.kernel cannot be read', 'missing')


@pytest.mark.parametrize('file', ['0.0', '.zarray'])
def test_file_cut_off(copied, file):
  file = copied / 'target.token_embedder.embedding' / file
  file.write_bytes(file.read_bytes()[:40])
  assert_refused(copied, 'target.token_embedder.embedding cannot be read')


def test_header_of_another_shape(copied):
  kernel = copied / 'target.encoder.layers_1.mlp.wo.kernel'
  shutil.rmtree(kernel)
  shutil.copytree(copied / 'target.token_embedder.embedding', kernel)
  assert_refused(copied, 'wo.kernel has the shape (512, 32)', '(64, 32)')


@pytest.mark.parametrize('size', [1, 100, 20000])
def test_msgpack_cut_off(copied, size):
  file = copied / 'checkpoint'
  file.write_bytes(file.read_bytes()[:size])
  assert_refused(copied, 'cannot be read as msgpack', 'copy the whole folder')


def test_no_checkpoint_file(copied):
  (copied / 'checkpoint').unlink()
  assert not t5x.is_one(copied)
  assert_refused(copied, 'is no T5X checkpoint', 'msgpack file "checkpoint"')


def test_msgpack_of_something_else(tmp_path):
  content = serialization.msgpack_serialize({'params': {'kernel': np.ones(3)}})
  (tmp_path / 'checkpoint').write_bytes(content)
  assert_refused(tmp_path, 'none of T5X', 'optimizer/target')


def test_broken_newest_checkpoint_is_not_passed_over(copied):
  (copied.parent / 'checkpoint_2000').mkdir()
  assert_refused(copied.parent, 'checkpoint_2000 is no T5X checkpoint')


def test_no_way_to_a_bucket(monkeypatch):
  def fail(path):
    raise ImportError('Please install gcsfs to access Google Storage')

  # In the place of a network, which these tests do without.
  monkeypatch.setattr(t5x.zarr_files, 'is_tree', fail)
  assert_refused(
      'gs://t5-data/checkpoint_1', 'cannot be reached: Please install gcsfs'
  )


def test_first_orbax_without_a_folder(written):
  folder = written(spec=lambda name, metadata: f'PLACEHOLDER://{name}')
  shutil.rmtree(folder / 'target.encoder.encoder_norm.scale')
  assert_refused(folder, 'encoder_norm.scale/.zarray cannot be read')


def test_bfloat16_as_integers(written):
  def spec(name, metadata):
    return {
        'driver': 'zarr',
        'kvstore': {'driver': 'file', 'path': name},
        'metadata': metadata | {'dtype': '<u2'},
    }

  assert_refused(written(spec=spec), 'uint16', 'save the checkpoint with T5X')


def test_no_token_embeddings(written):
  assert_refused(
      written(remove='token_embedder'),
      'no token embeddings (target/token_embedder/embedding)',
      'it holds encoder',
  )


def test_token_embeddings_twice(written):
  inner = 'encoder/token_embedder/embedding'
  folder = written(add={inner: np.zeros((512, 32), 'f4')})
  assert_refused(folder, f'both {inner} and token_embedder/embedding')


@pytest.mark.parametrize(
    'name',
    [
        'encoder/side_relpos_bias/rel_embedding',
        'encoder/layers_0/mlp/wi_fused/kernel',
        'encoder/layers_1/attention/query/bias',
        'encoder/prompt/prompt/prompt',
    ],
)
def test_other_architectures(written, name):
  folder = written(add={name: np.zeros((32, 32), 'f4')})
  assert_refused(folder, f'another architecture than T5: it has {name}')


@pytest.mark.parametrize(
    'name', ['projection_layer/bias', 'pooler/attention_hidden/kernel']
)
def test_extra_tensor(written, name):
  folder = written(add={name: np.zeros((32, 32), 'f4')})
  assert_refused(folder, 'no whole model', f'target.{name.replace("/", ".")}')


def test_transposed_kernel(written):
  folder = written(add={WO: np.zeros((32, 64), 'f4')})
  assert_refused(folder, WO, 'the shape (32, 64)', 'expected (64, 32)')


def test_a_layer_too_few_in_the_middle(written):
  assert_refused(
      written(remove='layers_1/'),
      'of 3 layers',
      'encoder/layers_1/attention/query/kernel is missing',
      'and 3 more',
  )


def test_a_layer_too_few_at_the_end(written):
  state = {'param_states/encoder/layers_2/mlp/wo/kernel/v': np.zeros((64, 32))}
  assert_refused(
      written(remove='layers_2/', state=state),
      'a parameter that is not there, target/encoder/layers_2/mlp/wo/kernel',
  )


def test_layers_with_relative_positions_of_their_own(written):
  bias = t5x_files.parameters('t5_1_0_tiny')[BIAS]
  own = {
      f'encoder/layers_{i}/relpos_bias/rel_embedding': bias + (i == 2)
      for i in range(3)
  }
  assert_refused(
      written(remove=BIAS, add=own),
      'target.encoder.layers_2.relpos_bias.rel_embedding differs',
      'as in umT5',
  )


def test_relative_positions_both_shared_and_of_a_layer(written):
  own = {'encoder/layers_0/relpos_bias/rel_embedding': np.zeros((4, 32), 'f4')}
  assert_refused(written(add=own), 'relative positions of their own')


def scanned(written, layers, **changes):
  arrays = t5x_files.parameters('t5_1_0_tiny')
  stacks = {
      path.replace('layers_0', 'encoder'): np.stack([array] * layers, 1)
      for path, array in arrays.items()
      if 'layers_0' in path
  }
  return written(remove='layers_', add=stacks | changes)


NORM = 'encoder/encoder/pre_attention_layer_norm/scale'


def test_as_many_layers_as_the_width(written):
  assert_refused(
      scanned(written, 32),
      'pre_attention_layer_norm.scale has the shape (32, 32)',
      'which axis is that of the layers cannot be told',
  )


def test_norms_of_another_width(written):
  folder = scanned(written, 3, **{NORM: np.zeros((31, 3), 'f4')})
  assert_refused(folder, 'the shape (31, 3)', 'cannot be told', 'width, 32')


def test_a_layer_too_few_in_a_stack(written):
  kernel = 'encoder/encoder/mlp/wo/kernel'
  folder = scanned(written, 3, **{kernel: np.zeros((64, 2, 32), 'f4')})
  assert_refused(folder, 'wo.kernel has the shape (64, 2, 32); expected 3')


def test_stack_without_norms(written):
  kernel = {'encoder/encoder/mlp/wo/kernel': np.zeros((64, 3, 32), 'f4')}
  assert_refused(written(remove='layers_', add=kernel), 'stacked layers')
