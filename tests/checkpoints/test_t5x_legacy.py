"""Checkpoints in T5X's format: as T5X writes them, and read back bit-equal."""

import dataclasses
import resource

from flax import serialization
import numpy as np
import pytest
import t5x_files
from tiny_weights import assert_same, tensor

from dualenc_jax.checkpoints import t5x, t5x_legacy
from dualenc_jax.utils.errors import UserError


def content(folder):
  return serialization.msgpack_restore((folder / 'checkpoint').read_bytes())


def with_tensors(weights, arrays, **changes):
  added = {name: tensor(name, array) for name, array in arrays.items()}
  return dataclasses.replace(
      weights, tensors={**weights.tensors, **added}, **changes
  ).check()


@pytest.fixture
def golden():
  return t5x.read(t5x_files.GOLDEN / 't5_1_1_tiny' / 't5x_orbax')


def test_same_files_as_t5x(tmp_path, golden):
  t5x_legacy.write(golden, tmp_path)
  of_t5x = t5x_files.GOLDEN / 't5_1_1_tiny' / t5x_files.LEGACY
  mine, theirs = content(tmp_path / 'checkpoint_1000'), content(of_t5x)
  assert mine.keys() == theirs.keys()
  assert mine['version'] == theirs['version']
  state = mine['optimizer']['state']
  assert state.keys() == {'step'}
  assert state['step'].dtype == theirs['optimizer']['state']['step'].dtype
  assert state['step'] == theirs['optimizer']['state']['step']
  target = theirs['optimizer']['target']
  # Paths, shapes, chunks, compression: word for word.
  assert mine['optimizer']['target'] == {
      part: target[part] for part in ('encoder', 'token_embedder')
  }
  written = sorted((tmp_path / 'checkpoint_1000').glob('target.*'))
  assert [f.name for f in written] == sorted(
      f.name for f in of_t5x.glob('target.*')
  )
  for folder in written:
    array = t5x_files.read_zarr(of_t5x / folder.name)
    np.testing.assert_array_equal(t5x_files.read_zarr(folder), array)


def test_names_are_those_of_t5x_retrieval_or_ours(tmp_path, golden):
  kernel = np.arange(32 * 8, dtype=np.float32).reshape(32, 8)
  weights = with_tensors(golden, {'projection/kernel': kernel}, step=None)
  t5x_legacy.write(weights, tmp_path)
  folder = tmp_path / 'checkpoint_0'
  target = content(folder)['optimizer']['target']
  assert target.keys() == {'encoder', 'projection_layer', 'token_embedder'}
  np.testing.assert_array_equal(
      t5x_files.read_zarr(folder / 'target.projection_layer.kernel'), kernel
  )
  assert_same(t5x.read(tmp_path), weights)
  # Of towers that differ.
  own = {f'passage_{n}': t.read() + 1 for n, t in golden.tensors.items()}
  weights = with_tensors(
      golden,
      own | {'projection/kernel': kernel, 'passage_projection/kernel': -kernel},
      passage_encoder=golden.encoder.clone(),
  )
  t5x_legacy.write(weights, tmp_path)
  target = content(tmp_path / 'checkpoint_1000')['optimizer']['target']
  parts = {'encoder', 'projection', 'token_embedder'}
  assert target.keys() == parts | {f'passage_{part}' for part in parts}
  assert_same(t5x.read(tmp_path), weights)


def test_big_tensor_in_several_chunks(tmp_path, golden, monkeypatch):
  monkeypatch.setattr(t5x_legacy, '_CHUNK_BYTES', 32 * 4 * 7)
  t5x_legacy.write(golden, tmp_path)
  folder = tmp_path / 'checkpoint_1000' / 'target.token_embedder.embedding'
  chunks = {file.name for file in folder.glob('[0-9]*')}
  assert chunks == {f'{i}.0' for i in range(74)}
  assert_same(t5x.read(tmp_path), golden)


def test_activations_that_the_files_do_not_tell(tmp_path, golden):
  silu = golden.encoder.clone(activations=('silu', 'linear'))
  message = 'activations silu x linear in its encoder.*expect gelu x linear'
  with pytest.raises(UserError, match=message):
    t5x_legacy.write(dataclasses.replace(golden, encoder=silu), tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path, golden):
  """A limit on the size of files stands for it; the embeddings are larger."""
  zarr = tmp_path / 'checkpoint_1000' / 'target.token_embedder.embedding'
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
  try:
    with pytest.raises(UserError, match=f'^{zarr} .* written: .*Make') as error:
      t5x_legacy.write(golden, tmp_path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert 'tensorstore_spec' not in str(error.value)
  assert not t5x.matches(tmp_path)
