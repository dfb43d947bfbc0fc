"""What was saved and what is read: a flipped bit is named and fallen back from.

Files are damaged byte by byte, and tensors rewritten by TensorStore.
"""

import json
import logging
import os
import shutil

from bit_flips import flip_bit, flip_byte
import jax
import numpy as np
import pytest
import test_checkpoints
from test_checkpoints import (
  abstract_state,
  assert_bit_equal,
  assert_restores,
  fill,
  META,
  save_all,
)

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.training import Partitioner
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import checkpoint_meta

pytestmark, collected = test_checkpoints.pytestmark, test_checkpoints.collected
KERNEL = 'encoder.wi.kernel'


def small_state():
  """With parameters, AdamW's moments and a memory."""
  abstract = abstract_state(Partitioner(2), names=('wi',), width=8)
  cache = jax.ShapeDtypeStruct(
      (4, 6), np.int32, sharding=abstract.step.sharding
  )
  return abstract._replace(memory={'tokens': cache})


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  save_all(folder, small_state(), [1, 2])
  return folder


@pytest.fixture
def copied(run, tmp_path):
  return shutil.copytree(run, tmp_path / 'run')


def falls_back(folder, caplog) -> str:
  """Restores checkpoint 1 instead of 2, and returns what is said of 2."""
  with caplog.at_level(logging.WARNING, 'dualenc_jax'):
    assert_restores(Checkpoints(folder), small_state(), 1)
  said = [r.message for r in caplog.records if r.name.startswith('dualenc_jax')]
  assert len(said) == 1 and 'Checkpoint 2' in said[0]
  assert (folder / 'broken_checkpoints/2').is_dir()
  return said[0]


@pytest.mark.parametrize(
    'item, name, index, bit',
    [
        ('params', 'scale', 7, 31),
        ('optimizer', f'0.nu.{KERNEL}', (7, 1023), 23),
        ('memory', 'tokens', (0, 0), 4),
    ],
)
def test_a_flipped_bit_names_its_file(copied, caplog, item, name, index, bit):
  flip_bit(copied / 'checkpoints/2' / item, name, index, bit)
  first, second = checkpoint_reader.check_integrity(copied)
  assert (first.step, second.step) == (1, 2)
  assert first.has_digests and not first.problems
  (problem,) = second.problems
  said = f'checkpoints/2/{item}/manifest.ocdbt is not what was saved'
  assert said in problem and said in falls_back(copied, caplog)


def test_every_file_of_a_tensor_has_a_digest(copied):
  folder = copied / 'checkpoints/2'
  _, known = checkpoint_meta.read(folder)
  assert known == checkpoint_meta.digest_items(folder)
  assert known.keys() == {'params', 'optimizer', 'memory'}
  assert all('manifest.ocdbt' in files for files in known.values())


def test_a_list_that_lacks_a_tensor_is_damage_and_no_other_model(
    copied, caplog
):
  tree = copied / 'checkpoints/2/params/_METADATA'
  value = json.loads(tree.read_text())
  del value['tree_metadata']["('scale',)"]
  tree.write_text(json.dumps(value))
  _, second = checkpoint_reader.check_integrity(copied)
  said = 'params/_METADATA is not what was saved'
  assert said in second.problems[0] and said in falls_back(copied, caplog)


@pytest.mark.parametrize('item, name', [('params', ''), ('optimizer', '0/mu/')])
def test_numbers_that_are_not_finite(copied, caplog, item, name):
  shutil.rmtree(copied / 'checkpoints/2')
  state = fill(small_state(), 2)
  tree = state.params if item == 'params' else state.opt_state[0].mu
  tree['scale'] = jax.device_put(
      np.full(8, -np.inf, np.float32), tree['scale'].sharding
  )
  checkpoints = Checkpoints(copied)
  checkpoints.save(state, 2, META)
  checkpoints.wait()
  _, second = checkpoint_reader.check_integrity(copied)
  assert f'{item}: {name}scale holds NaN or infinity' in second.problems[0]
  said = falls_back(copied, caplog)
  assert f'{item}: {name}scale holds NaN or infinity' in said


def test_all_are_damaged(copied):
  for step in (1, 2):
    flip_bit(copied / f'checkpoints/{step}/params', 'scale', 3, 3)
  said = '2: .*2/params/manifest.* is not what was saved.*; 1: .*1/params/'
  with pytest.raises(UserError, match=said):
    Checkpoints(copied).restore(small_state())
  assert Checkpoints(copied).steps() == [1, 2]
  assert not (copied / 'broken_checkpoints').exists()


def cut_short(path):
  os.truncate(path, path.stat().st_size // 2)


@pytest.mark.nightly
def test_damage_of_each_file_is_harmless_or_noticed(copied):
  checkpoint, whole = copied / 'checkpoints/2', copied / 'whole'
  shutil.copytree(checkpoint, whole)
  reached = set()
  for path in sorted(p for p in whole.rglob('*') if p.is_file()):
    for damage in (
        cut_short, lambda path: flip_byte(path, 0.02, 0x10),
        lambda path: flip_byte(path, 0.98, 0x10),
    ):
      if not path.stat().st_size:
        continue
      damage(checkpoint / path.relative_to(whole))
      state, meta = Checkpoints(copied).restore(small_state())
      # Whatever is restored is whole.
      assert meta == {**META, 'step': meta['step']}
      assert_bit_equal(state, fill(small_state(), meta['step']))
      reached.add(meta['step'])
      shutil.rmtree(checkpoint, ignore_errors=True)
      shutil.copytree(whole, checkpoint)
  assert reached == {1, 2}
