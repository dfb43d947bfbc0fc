"""Runs that start from another checkpoint: of another form or architecture."""

import pathlib

from flax import traverse_util
import interrupted
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import small_vocabulary
import tiny_evaluation
import tiny_run
import tiny_training

from dualenc_jax.commands import check, train
from dualenc_jax.errors import UserError
from dualenc_jax.interop import assignment
from dualenc_jax.interop.weights import shapes_of, Weights
from dualenc_jax.models import (
  describe,
  DualEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.tensor_files.tensors import Tensor
from dualenc_jax.text.tokenizer import Vocabulary
from dualenc_jax.training import initial, Optimizer, Partitioner

pytestmark = pytest.mark.devices(8)

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'
LEGACY = GOLDEN / 't5_1_1_tiny' / 't5x_legacy' / 'checkpoint_1000'
ORBAX = GOLDEN / 't5_1_1_tiny' / 't5x_orbax' / 'checkpoint_1000'


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory) -> Vocabulary:
  path = tmp_path_factory.mktemp('vocabulary') / 'small.model'
  return Vocabulary(str(small_vocabulary.write(path)))


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
  return read_golden(ORBAX)


def read_golden(path: pathlib.Path) -> dict[str, np.ndarray]:
  """All of T5X's state by path, read by Orbax without our code."""
  tree = ocp.PyTreeCheckpointer().restore(path / 'state')
  return traverse_util.flatten_dict(tree, sep='/')


def golden_model(passage=False, **options) -> DualEncoder:
  """A dual encoder of the golden's sizes."""
  encoder = T5Encoder(
      **(dict(num_layers=3, num_heads=4, head_dim=8, mlp_dim=64) | options)
  )
  own = {}
  if passage:
    own = {
        'passage_token_embedder': TokenEmbedder(512, 32),
        'passage_encoder': encoder.clone(),
        'passage_projection': Projection(16),
    }
  return DualEncoder(TokenEmbedder(512, 32), encoder, Projection(16), **own)


def make_plan(model, partitioner=Partitioner()):
  rate = optax.linear_schedule(1e-3, 0.0, 10)
  optimizer = Optimizer(optax.adafactor(rate), rate)
  return tiny_training.plan(partitioner, optimizer, model)


def fresh_state(model, partitioner=Partitioner()):
  """Random parameters where the plan has them; no initialiser is compiled."""
  abstract = make_plan(model, partitioner).abstract
  rng = np.random.default_rng(0)
  state = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), abstract)
  params = jax.tree.map(
      lambda a: rng.normal(size=a.shape).astype(a.dtype), abstract.params
  )
  return jax.device_put(
      state._replace(params=params),
      jax.tree.map(lambda a: a.sharding, abstract),
  )


def start(path, model, vocabulary, partitioner=Partitioner(), **options):
  source = initial.InitialCheckpoint(str(path), **options)
  state = fresh_state(model, partitioner)
  plan = initial.plan_start(source, describe(model), vocabulary, state.params)
  return initial.start_from(plan, state)


def refuse(path, model, vocabulary) -> str:
  """The message; nothing is computed before it."""
  params = make_plan(model).abstract.params
  with pytest.raises(UserError) as error:
    initial.plan_start(str(path), describe(model), vocabulary, params)
  return str(error.value)


def flat(tree) -> dict[str, np.ndarray]:
  return {
      name: np.asarray(leaf)
      for name, leaf in traverse_util.flatten_dict(tree, sep='/').items()
  }


@pytest.mark.parametrize(
    'path, passage', [(LEGACY, False), (ORBAX, True)], ids=['sde', 'ade']
)
def test_a_t5x_encoder_starts_one_or_both_towers(
    path, passage, vocabulary, golden
):
  model = golden_model(passage)
  partitioner = Partitioner(2, (('embed', 'data'),))
  params = flat(start(path, model, vocabulary, partitioner).params)
  fresh = flat(fresh_state(model).params)
  assert params.keys() == fresh.keys()
  taken = 0
  for name, value in params.items():
    source = 'target/' + name.removeprefix('passage_')
    if 'projection' in name or name.startswith('loss/'):
      np.testing.assert_array_equal(value, fresh[name])
    else:
      np.testing.assert_array_equal(value, golden[source], err_msg=name)
      taken += 1
  assert taken == (1 + passage) * (3 * 9 + 3)


def test_arrays_stay_where_the_plan_has_them(vocabulary):
  partitioner = Partitioner(4, (('embed', 'data'),))
  before = fresh_state(golden_model(), partitioner).params
  after = start(LEGACY, golden_model(), vocabulary, partitioner).params
  shardings = jax.tree.map(lambda x: x.sharding, before)
  assert jax.tree.map(lambda x: x.sharding, after) == shardings
  wo = after['encoder']['layers_0']['mlp']['wo']['kernel']
  assert wo.addressable_shards[0].data.shape == (64 // 4, 32 // 2)


def test_layers_that_are_scanned_take_those_of_their_number(vocabulary, golden):
  model = golden_model(scan_layers=True)
  params = flat(start(ORBAX, model, vocabulary).params)
  np.testing.assert_array_equal(
      params['encoder/layers/attention/query/kernel'],
      [golden[f'target/encoder/layers_{i}/attention/query/kernel']
       for i in range(3)],
  )


@pytest.mark.parametrize('form', ['t5x_legacy', 't5x_orbax'])
def test_optimizer_statistics_are_kept_if_asked_for(form, vocabulary):
  folder = GOLDEN / 't5_1_0_tiny'
  golden = read_golden(folder / 't5x_orbax' / 'checkpoint_1000')
  model = golden_model(activations=('relu',))
  path = folder / form / 'checkpoint_1000'
  state = start(path, model, vocabulary, keep_optimizer=True)
  factored = state.opt_state[0]
  assert int(factored.count) == 1000
  names = traverse_util.flatten_dict(factored.v, sep='/')
  compared = 0
  for name, value in names.items():
    if 'projection' in name or name.startswith('loss/'):
      assert not np.any(value)
      continue
    np.testing.assert_array_equal(
        value, golden[f'state/param_states/{name}/v'], err_msg=name
    )
    compared += 1
  assert compared == 3 * 8 + 3
  # The schedule starts anew, and so does what is not asked for.
  assert int(state.step) == 0
  assert int(start(path, model, vocabulary).opt_state[0].count) == 0


def test_a_vocabulary_of_another_size_is_refused():
  message = refuse(LEGACY, golden_model(), Vocabulary('python_code_8k'))
  assert '512 token embeddings' in message and '8000 pieces' in message


def test_another_architecture_is_refused_by_name(vocabulary):
  relu = golden_model(activations=('relu',))
  message = refuse(LEGACY, relu, vocabulary)
  assert 'encoder.activations' in message and 't5_1_0_base' in message
  # T5X does not tell which it has, but how many; so does this model.
  silu = golden_model(activations=('silu', 'linear'))
  start(LEGACY, silu, vocabulary)
  shallow = golden_model(num_layers=2)
  message = refuse(LEGACY, shallow, vocabulary)
  assert 'no place for: encoder/layers_2/' in message and 'DROP' in message
  narrow = golden_model(mlp_dim=32)
  assert 'mlp.wi_0.kernel has the shape (32, 64)' in refuse(
      LEGACY, narrow, vocabulary
  )


@pytest.fixture
def first() -> pathlib.Path:
  """A run of the tiny SDE of two layers."""
  return tiny_evaluation.shared_model()


@pytest.mark.slow
def test_a_second_stage_by_rules(first, tmp_path):
  """An SDE into an ADE whose passage tower keeps one layer of two."""
  second = tiny_run.flags(
      tmp_path,
      '--gin_file=architectures/ade.gin',
      f'--gin.INITIAL_CHECKPOINT_PATH={first}',
      '--gin.INITIAL_CHECKPOINT_RULES='
      "(('passage_encoder/layers_0/(.*)', r'encoder/layers_1/\\1'),"
      " ('passage_projection/.*', None))",
      '--gin.passage/models.T5Encoder.num_layers=1',
      '--gin.STEPS=1',
      '--gin.LEARNING_RATE=0.0',
  )
  train.main([*second, f'--model_dir={tmp_path / "second"}'])
  a = interrupted.item(first, 2, 'params')
  b = interrupted.item(tmp_path / 'second', 1, 'params')
  kernel = 'attention/query/kernel'
  for name, source in {
      f'encoder/layers_0/{kernel}': f'encoder/layers_0/{kernel}',
      f'passage_encoder/layers_0/{kernel}': f'encoder/layers_1/{kernel}',
      'passage_encoder/encoder_norm/scale': 'encoder/encoder_norm/scale',
      'passage_token_embedder/embedding': 'token_embedder/embedding',
      'projection/kernel': 'projection/kernel',
  }.items():
    np.testing.assert_array_equal(b[name], a[source], err_msg=name)
  assert np.any(b['passage_projection/kernel'] != a['projection/kernel'])
  assert 'passage_encoder/layers_1/' + kernel not in b


def test_activations_are_those_of_the_tower_that_a_rule_takes():
  there = golden_model(passage=True)
  tensors = {
      name: Tensor(name, shape, lambda: None)
      for name, shape in shapes_of(there).items()
  }
  silu = there.encoder.clone(activations=('silu', 'linear'))
  weights = Weights('kind', 'there', tensors, there.encoder, silu).check()
  rules = [('(.*)', r'passage_\1')]
  drop = ['(token_embedder|encoder|projection)/.*']
  target = golden_model()
  sources = assignment.assign(shapes_of(target), weights, rules, drop)
  with pytest.raises(UserError, match="'silu', 'linear'.* its passage_encoder"):
    initial.check_activations(weights, describe(target), sources)
  target = golden_model(activations=('silu', 'linear'))
  initial.check_activations(weights, describe(target), sources)


def test_check_says_what_would_start_from_where(first, tmp_path, capsys):
  flags = tiny_run.flags(
      tmp_path,
      f'--gin.INITIAL_CHECKPOINT_PATH={first}',
      "--gin.INITIAL_CHECKPOINT_RULES=(('projection/.*', None),)",
      "--gin.INITIAL_CHECKPOINT_DROP=('projection/.*',)",
  )
  check.main([*flags, '--no_compile'])
  line = '(dualenc_jax model_dir): 12 tensors; fresh: projection/kernel.'
  assert f'Starting from {first} {line}' in capsys.readouterr().out


def test_a_rule_that_is_wrong_leaves_nothing_behind(first, tmp_path):
  flags = tiny_run.flags(
      tmp_path,
      f'--gin.INITIAL_CHECKPOINT_PATH={first}',
      "--gin.INITIAL_CHECKPOINT_RULES=(('encodr/.*', None),)",
  )
  with pytest.raises(UserError, match="RULES: 'encodr/.*' matches no param"):
    train.main([*flags, f'--model_dir={tmp_path / "model"}'])
  assert not (tmp_path / 'model' / 'config.gin').exists()


def test_a_folder_that_is_nothing_says_what_is_expected(vocabulary, tmp_path):
  (tmp_path / 'notes.txt').write_text('')
  message = refuse(tmp_path, golden_model(), vocabulary)
  assert 'holds notes.txt. Expected a model_dir' in message
  message = refuse(tmp_path / 'none', golden_model(), vocabulary)
  assert 'does not exist' in message and 'hf://org/name' in message
