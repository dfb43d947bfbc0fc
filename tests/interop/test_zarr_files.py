"""Tensors of Orbax checkpoints: one at a time, and files that are lost."""

import shutil

import numpy as np
import orbax.checkpoint as ocp
import pytest
import t5x_files

from dualenc_jax.errors import UserError
from dualenc_jax.tensor_files import zarr_files


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
