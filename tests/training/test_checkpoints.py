"""Checkpoints: exact, on any mesh, and what happens when they are damaged."""

import contextlib
import gc
import logging
import resource
import shutil
import time

from flax import linen as nn
import jax
import numpy as np
import optax
import pytest
import tiny_training

from dualenc_jax.training import Optimizer, Partitioner
from dualenc_jax.training.checkpoints import Checkpoints, note_best
from dualenc_jax.training.hooks import Training
from dualenc_jax.training.step import add_shardings, TrainState
from dualenc_jax.utils.errors import UserError

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
  return add_shardings(
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


def test_round_trip_of_a_model_and_its_optimizer(tmp_path):
  optimizer = Optimizer(
      optax.adafactor(1e-3, min_dim_size_to_factor=16),
      lambda step: 1e-3,
      freeze=('token_embedder/.*',),
      multipliers=(('.*/scale', 0.5),),
  )
  abstract, *_ = tiny_training.plan(Partitioner(2), optimizer)
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


def test_the_newest_and_the_best_are_kept(tmp_path):
  abstract = abstract_state()
  save_all(tmp_path, abstract, [1, 2, 3, 9], 2)
  checkpoints = Checkpoints(tmp_path, 2)
  assert checkpoints.steps() == [3, 9]
  checkpoints.best = 3
  for step in (10, 11):
    checkpoints.save(fill(abstract, step), step, META)
  checkpoints.wait()
  assert Checkpoints(tmp_path, 2).steps() == [3, 10, 11]
  assert_restores(Checkpoints(tmp_path, 2), abstract, 11)


def test_the_saved_state_may_be_donated_at_once(tmp_path):
  abstract = abstract_state()
  checkpoints = Checkpoints(tmp_path)
  state = fill(abstract, 1)
  checkpoints.save(state, 1, META)
  jax.tree.map(lambda a: a.delete(), state)
  checkpoints.wait()
  assert_restores(checkpoints, abstract, 1)


# Truncated files and flipped bits are in test_integrity.py.
@pytest.mark.parametrize('lost', ['meta/*', 'optimizer/manifest.ocdbt', '**/*'])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(two, caplog, lost):
  for path in (two / 'checkpoints/2').glob(lost):
    if path.is_file():
      path.unlink()
  checkpoints = Checkpoints(two)
  with caplog.at_level(logging.WARNING, 'dualenc_jax'):
    assert_restores(checkpoints, abstract_state(), 1)
  said = [r.message for r in caplog.records if r.name.startswith('dualenc_jax')]
  assert len(said) == 1
  assert 'Checkpoint 2' in said[0] and 'broken_checkpoints' in said[0]
  assert (two / 'broken_checkpoints/2').is_dir()
  assert checkpoints.steps() == [1]


def test_a_half_written_checkpoint_is_ignored(two):
  abstract = abstract_state()
  # As Orbax leaves it when it is killed while it writes.
  folder = two / 'checkpoints'
  (folder / '2').rename(folder / '2.orbax-checkpoint-tmp-0')
  (folder / '2.orbax-checkpoint-tmp-0/params/manifest.ocdbt').unlink()
  checkpoints = Checkpoints(two)
  assert checkpoints.steps() == [1]
  assert_restores(checkpoints, abstract, 1)
  assert not (two / 'broken_checkpoints').exists()
  checkpoints.save(fill(abstract, 2), 2, META)
  checkpoints.wait()
  assert_restores(Checkpoints(two), abstract, 2)


def test_a_checkpoint_of_another_model_or_optimizer_is_refused(two):
  plain = abstract_state()
  adam = plain.opt_state[0]._replace(nu=())
  for wanted, said in (
      (abstract_state(width=32), r'wi/kernel: \(64, 1024\) in the checkpoint,'
       r' \(32, 1024\) in this model'),
      (abstract_state(names=tuple('abcdefgh')), r'a/kernel: absent.* 5 more'),
      (plain._replace(opt_state=(adam,)), 'optimizer is of another model or'),
  ):
    with pytest.raises(UserError, match=said):
      Checkpoints(two).restore(wanted)
  assert Checkpoints(two).steps() == [1, 2]
  assert not (two / 'broken_checkpoints').exists()


@contextlib.contextmanager
def files_of_at_most(size):
  """Makes every write beyond so many bytes of a file fail, as a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_saving(tmp_path):
  abstract = abstract_state()
  save_all(tmp_path, abstract, [1, 2])
  with files_of_at_most(100_000), pytest.raises(UserError) as error:
    save_all(tmp_path, abstract, [3])
  message = str(error.value)
  said = f'Saving a checkpoint to {tmp_path / "checkpoints"} failed'
  assert said in message and 'File too large' in message

  # A process of its own would not meet what threads of the failed save remove.
  for _ in range(500):
    if not list((tmp_path / 'checkpoints').rglob('*__lock')):
      break
    time.sleep(0.01)
  assert_restores(Checkpoints(tmp_path), abstract, 2)
  assert not (tmp_path / 'broken_checkpoints').exists()
  save_all(tmp_path, abstract, [3])
  assert_restores(Checkpoints(tmp_path), abstract, 3)


def test_the_best_step_is_one_that_was_trained():
  """A run that only harms its start is not taken for that start."""
  run = Training(0, None)
  for step, value, best in (
      (0, 0.9, None), (10, 0.5, 10), (20, 0.6, 20), (30, 0.4, 20), (40, 0.6, 20)
  ):
    run.step, run.save = step, False
    note_best(run, {'nDCG@10': value}, 'nDCG@10', patience=2)
    assert run.notes.get('best', {}).get('step') == best
    assert run.save == (step == best)
    assert (run.ended is not None) == (step == 40)
  # Its name is checked before the first step.
  with pytest.raises(UserError, match="KEEP_BEST is 'MRR'; .* have nDCG@10"):
    note_best(Training(0, None), {'nDCG@10': 0.5}, 'MRR', None)
