"""Checkpoints: exact, on any mesh, and what happens when they are damaged."""

import gc
import logging
import os
import resource
import shutil
import time

from flax import linen as nn
import jax
import numpy as np
import optax
import pytest
import tiny_training

from dualenc_jax.errors import UserError
from dualenc_jax.training import Optimizer, Partitioner
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.step import TrainState, with_shardings

# Orbax leaves the other reads of a damaged checkpoint unfinished.
pytestmark = [
    pytest.mark.devices(8),
    pytest.mark.filterwarnings(
        'ignore::pytest.PytestUnraisableExceptionWarning'
    ),
]


@pytest.fixture(scope='module', autouse=True)
def collected():
  """Frees those reads here, so that no later test is blamed for them."""
  yield
  gc.collect()


FSDP = (('embed', 'data'),)
META = {'config': 'a = 1\nb = "ü"', 'data': {'next_step': 7}, 'run_id': 'r'}


def abstract_state(partitioner=None, width=64, names=('wi', 'wo')):
  """A small state with AdamW, one array of it a quarter of a megabyte."""
  partitioner = partitioner or Partitioner()
  kernel = nn.LogicallyPartitioned(
      jax.ShapeDtypeStruct((width, 1024), np.float32), ('embed', 'mlp')
  )
  boxed = {
      'encoder': {name: {'kernel': kernel} for name in names},
      'scale': jax.ShapeDtypeStruct((8,), np.float32),
  }
  params, adamw = nn.unbox(boxed), optax.adamw(1e-3)
  state = jax.eval_shape(
      lambda params: TrainState(np.int32(0), params, adamw.init(params)), params
  )
  shardings = partitioner.param_shardings(boxed)
  return with_shardings(
      state,
      TrainState(
          partitioner.replicated,
          shardings,
          partitioner.state_shardings(state.opt_state, params, shardings),
      ),
  )


def fill(abstract, step):
  """A state of random numbers that differ from step to step."""
  rng = np.random.default_rng(step)
  state = jax.tree.map(
      lambda a: jax.device_put(
          (10 * rng.normal(size=a.shape)).astype(a.dtype), a.sharding
      ),
      abstract,
  )
  return state._replace(
      step=jax.device_put(np.int32(step), abstract.step.sharding)
  )


def save_all(folder, abstract, steps, keep=3):
  checkpoints = Checkpoints(folder, keep)
  for step in steps:
    checkpoints.save(fill(abstract, step), step, META)
    checkpoints.wait()
  return checkpoints


@pytest.fixture(scope='module')
def kept(tmp_path_factory):
  folder = tmp_path_factory.mktemp('kept')
  save_all(folder, abstract_state(), [1, 2])
  return folder


@pytest.fixture
def two(kept, tmp_path):
  """A run with the checkpoints 1 and 2."""
  return shutil.copytree(kept, tmp_path / 'run')


def assert_bit_equal(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def assert_restores(checkpoints, abstract, step):
  state, meta = checkpoints.restore(abstract)
  assert meta == {**META, 'step': step}
  assert_bit_equal(state, fill(abstract, step))
  assert jax.tree.map(lambda a: a.sharding, state) == jax.tree.map(
      lambda a: a.sharding, abstract
  )


def test_nothing_to_restore(tmp_path):
  checkpoints = Checkpoints(tmp_path / 'run')
  assert checkpoints.restore(abstract_state()) is None
  assert checkpoints.steps() == []
  assert not (tmp_path / 'run').exists()


def test_round_trip_of_a_model_and_its_optimizer(tmp_path):
  optimizer = Optimizer(
      optax.adafactor(1e-3, min_dim_size_to_factor=16),
      lambda step: 1e-3,
      freeze=('token_embedder/.*',),
      multipliers=(('.*/scale', 0.5),),
  )
  abstract, _, _ = tiny_training.plan(Partitioner(2), optimizer)
  save_all(tmp_path, abstract, [9])
  assert_restores(Checkpoints(tmp_path), abstract, 9)


@pytest.mark.parametrize(
    'partitioner',
    [Partitioner(2, FSDP), tiny_training.OneDevice()],
    ids=['4x2-FSDP', '1x1'],
)
def test_restores_onto_another_mesh(two, partitioner):
  abstract = abstract_state(partitioner)
  state, _ = Checkpoints(two).restore(abstract)
  saved = fill(abstract_state(), 2)
  assert_bit_equal(jax.device_get(state), jax.device_get(saved))
  kernel = state.opt_state[0].nu['encoder']['wi']['kernel']
  wanted = abstract.params['encoder']['wi']['kernel'].sharding
  assert kernel.sharding == wanted
  assert kernel.addressable_shards[0].data.shape == wanted.shard_shape(
      kernel.shape
  )


@pytest.mark.parametrize('keep', [1, 2])
def test_the_newest_are_kept(tmp_path, keep):
  abstract = abstract_state()
  checkpoints = save_all(tmp_path, abstract, [1, 2, 3, 10], keep)
  assert checkpoints.steps() == [1, 2, 3, 10][-keep:]
  assert Checkpoints(tmp_path, keep).steps() == [1, 2, 3, 10][-keep:]
  assert_restores(Checkpoints(tmp_path, keep), abstract, 10)


def test_the_saved_state_may_be_donated_at_once(tmp_path):
  abstract = abstract_state()
  checkpoints = Checkpoints(tmp_path)
  state = fill(abstract, 1)
  checkpoints.save(state, 1, META)
  jax.tree.map(lambda a: a.delete(), state)
  checkpoints.wait()
  assert_restores(checkpoints, abstract, 1)


# What may be damaged -> files of it, as glob patterns within a checkpoint.
DAMAGE = {
    'meta': 'meta/metadata',
    'tree of the parameters': 'params/_METADATA',
    'manifest of the optimizer': 'optimizer/manifest.ocdbt',
    'index of the parameters': 'params/d/*',
    'data of the optimizer': 'optimizer/ocdbt.process_0/d/*',
    'everything': '**/*',
}


def truncate(path):
  os.truncate(path, path.stat().st_size // 2)


def empty(path):
  os.truncate(path, 0)


def delete(path):
  path.unlink()


# Truncated files are below.
@pytest.mark.parametrize('what, how', zip(DAMAGE, 3 * [empty, delete]))
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    two, caplog, what, how
):
  found = (two / 'checkpoints/2').glob(DAMAGE[what])
  damaged = [path for path in found if path.is_file()]
  assert damaged
  for path in damaged:
    how(path)
  checkpoints = Checkpoints(two)
  with caplog.at_level(logging.WARNING, 'dualenc_jax'):
    assert_restores(checkpoints, abstract_state(), 1)
  said = [r.message for r in caplog.records if r.name.startswith('dualenc_jax')]
  assert len(said) == 1
  assert 'Checkpoint 2' in said[0] and 'broken_checkpoints' in said[0]
  assert len(said[0]) < 1000
  assert (two / 'broken_checkpoints/2').is_dir()
  assert checkpoints.steps() == [1]


def test_each_truncated_file_is_harmless_or_noticed(tmp_path):
  abstract = abstract_state(names=('wi',))
  save_all(tmp_path, abstract, [1, 2])
  checkpoint = tmp_path / 'checkpoints/2'
  shutil.copytree(checkpoint, tmp_path / 'copy')
  reached = set()
  for path in sorted((tmp_path / 'copy').rglob('*')):
    if path.is_file():
      truncate(checkpoint / path.relative_to(tmp_path / 'copy'))
      state, meta = Checkpoints(tmp_path).restore(abstract)
      # Whatever is restored is whole.
      assert_bit_equal(state, fill(abstract, meta['step']))
      reached.add(meta['step'])
      shutil.rmtree(checkpoint, ignore_errors=True)
      shutil.copytree(tmp_path / 'copy', checkpoint)
  assert reached == {1, 2}


def test_a_second_broken_checkpoint_of_a_step_is_kept_too(tmp_path):
  abstract = abstract_state()
  save_all(tmp_path, abstract, [1])
  for _ in range(2):
    checkpoints = save_all(tmp_path, abstract, [2])
    delete(tmp_path / 'checkpoints/2/params/manifest.ocdbt')
    assert_restores(checkpoints, abstract, 1)
  assert sorted(os.listdir(tmp_path / 'broken_checkpoints')) == ['2', '2.2']


def test_all_checkpoints_damaged(two):
  for step in (1, 2):
    delete(two / f'checkpoints/{step}/params/_METADATA')
  with pytest.raises(UserError, match='No checkpoint in .* can be read'):
    Checkpoints(two).restore(abstract_state())
  assert Checkpoints(two).steps() == [1, 2]
  assert not (two / 'broken_checkpoints').exists()


def test_a_half_written_checkpoint_is_ignored(two):
  abstract = abstract_state()
  # As Orbax leaves it when it is killed while it writes.
  folder = two / 'checkpoints'
  (folder / '2').rename(folder / '2.orbax-checkpoint-tmp-0')
  delete(folder / '2.orbax-checkpoint-tmp-0/params/manifest.ocdbt')
  checkpoints = Checkpoints(two)
  assert checkpoints.steps() == [1]
  assert_restores(checkpoints, abstract, 1)
  assert not (two / 'broken_checkpoints').exists()
  checkpoints.save(fill(abstract, 2), 2, META)
  checkpoints.wait()
  assert_restores(Checkpoints(two), abstract, 2)


@pytest.mark.parametrize(
    'other, said',
    [
        (
            {'width': 32},
            r'params is of another model.*encoder/wi/kernel: \(64, 1024\) in'
            r' the checkpoint, \(32, 1024\) in this model',
        ),
        (
            {'names': ('wi', 'wo', 'wx')},
            r'encoder/wx/kernel: absent in the checkpoint, \(64, 1024\) in',
        ),
        (
            {'names': ('wi',)},
            r'encoder/wo/kernel: \(64, 1024\) in the checkpoint, absent in',
        ),
        (
            {'names': tuple('abcdefgh')},
            r'encoder/a/kernel: absent.* and 5 more\. Give the config',
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(two, other, said):
  wanted = abstract_state(**other)
  with pytest.raises(UserError, match=said):
    Checkpoints(two).restore(wanted)
  assert Checkpoints(two).steps() == [1, 2]
  assert not (two / 'broken_checkpoints').exists()


def test_a_checkpoint_of_another_optimizer_is_refused(two):
  abstract = abstract_state()
  other = abstract._replace(opt_state=abstract.opt_state[:1])
  other = other._replace(opt_state=(other.opt_state[0]._replace(nu=()),))
  with pytest.raises(UserError, match='optimizer is of another model or opt'):
    Checkpoints(two).restore(other)


@pytest.fixture
def disk_limit():
  """Makes every write beyond so many bytes of a file fail, as a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)

  def limit(size):
    size = before[0] if size is None else size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

  yield limit
  limit(None)


@pytest.mark.parametrize('size', [100_000, 0])
def test_a_full_disk_while_saving(tmp_path, disk_limit, size):
  abstract = abstract_state()
  checkpoints = save_all(tmp_path, abstract, [1, 2])
  disk_limit(size)
  with pytest.raises(UserError) as error:
    checkpoints.save(fill(abstract, 3), 3, META)
    checkpoints.wait()
  disk_limit(None)
  message = str(error.value)
  for said in (
      f'Saving a checkpoint to {tmp_path / "checkpoints"} failed', 'GiB',
      'File too large', 'The last good checkpoint (step 2) is kept',
  ):
    assert said in message
  assert len(message) < 1000

  # A process of its own would not meet what threads of the failed save remove.
  for _ in range(500):
    if not list((tmp_path / 'checkpoints').rglob('*__lock')):
      break
    time.sleep(0.01)
  resumed = Checkpoints(tmp_path)
  assert_restores(resumed, abstract, 2)
  assert not (tmp_path / 'broken_checkpoints').exists()
  resumed.save(fill(abstract, 3), 3, META)
  resumed.wait()
  assert_restores(Checkpoints(tmp_path), abstract, 3)


def test_the_first_checkpoint_does_not_fit(tmp_path, disk_limit):
  abstract = abstract_state()
  checkpoints = Checkpoints(tmp_path)
  disk_limit(1_000)
  with pytest.raises(UserError, match=r'last good checkpoint \(none yet\)'):
    checkpoints.save(fill(abstract, 1), 1, META)
    checkpoints.wait()
  disk_limit(None)
  assert Checkpoints(tmp_path).restore(abstract) is None
