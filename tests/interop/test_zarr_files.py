"""Tensors of Orbax checkpoints, against Orbax's own restore."""

import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import t5x_files

from dualenc_jax.errors import UserError
from dualenc_jax.tensor_files import zarr_files


def flat(tree):
  return {
      jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf)
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def assert_same(tensors, arrays):
  assert tensors.keys() == arrays.keys()
  for name, array in arrays.items():
    assert tensors[name].shape == array.shape
    np.testing.assert_array_equal(tensors[name].read(), array.astype('f4'))


@pytest.mark.filterwarnings('ignore:Sharding info not provided')
def test_t5x_state(monkeypatch):
  folder = t5x_files.GOLDEN / 't5_1_1_tiny' / t5x_files.STATE
  restored = flat(ocp.PyTreeCheckpointer().restore(folder.absolute()))
  assert len(restored) > 250
  assert_same(zarr_files.read_tree(folder), restored)
  # A relative path, read from elsewhere.
  monkeypatch.chdir(folder.parent)
  tensors = zarr_files.read_tree('state')
  monkeypatch.chdir('/')
  name = 'target/token_embedder/embedding'
  np.testing.assert_array_equal(tensors[name].read(), restored[name])


def test_an_entry_is_read_without_the_others(tmp_path):
  ocp.PyTreeCheckpointer(use_ocdbt=False, use_zarr3=False).save(
      tmp_path / 'item', {'stack': np.arange(6.0).reshape(3, 2)},
      save_args={'stack': ocp.SaveArgs(chunk_byte_size=16)},
  )
  chunks = sorted(p.name for p in (tmp_path / 'item' / 'stack').glob('[0-9]*'))
  assert chunks == ['0.0', '1.0', '2.0']
  (tmp_path / 'item' / 'stack' / '1.0').unlink()
  stack = zarr_files.read_tree(tmp_path / 'item')['stack']
  np.testing.assert_array_equal(stack.entry(0, 2).read(), [4.0, 5.0])
  with pytest.raises(UserError, match=r'item: stack\[1\] cannot be read.*1\.0'):
    stack.entry(0, 1).read()
  with pytest.raises(UserError, match='item: stack cannot be read.*1.0'):
    stack.read()


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
  (folder / '_METADATA').write_text('{"tree_metadata": {"(')
  with pytest.raises(UserError, match='cannot be opened: .*missing or dam'):
    zarr_files.read_tree(folder)
