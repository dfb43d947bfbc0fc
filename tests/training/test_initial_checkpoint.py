"""Runs that start from another checkpoint: of another form or architecture."""

import pathlib

from flax import traverse_util
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import small_vocabulary
import tiny_evaluation
import tiny_run
import tiny_training

from dualenc_jax.checkpoints import assignment
from dualenc_jax.checkpoints.weights import param_shapes, Weights
from dualenc_jax.cli import check, train
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import (
  describe,
  DualEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.training import initial_checkpoint, Optimizer, Partitioner
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

pytestmark = pytest.mark.devices(8)

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'
LEGACY = GOLDEN / 't5_1_1_tiny' / 't5x_legacy' / 'checkpoint_1000'
ORBAX = GOLDEN / 't5_1_1_tiny' / 't5x_orbax' / 'checkpoint_1000'


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory) -> Vocabulary:
  path = tmp_path_factory.mktemp('vocabulary') / 'small.model'
  return Vocabulary(str(small_vocabulary.write(path)))


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


RATE = optax.linear_schedule(1e-3, 0.0, 10)


def make_plan(model, partitioner=Partitioner()):
  optimizer = Optimizer(optax.adafactor(RATE), RATE)
  return tiny_training.plan(partitioner, optimizer, model)


def fresh_state(model, *how):
  """Random parameters where the plan has them; no initialiser is compiled."""
  abstract = make_plan(model, *how).abstract
  rng = np.random.default_rng(0)
  state = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), abstract)
  params = jax.tree.map(
      lambda a: rng.normal(size=a.shape).astype(a.dtype), abstract.params
  )
  return jax.device_put(
      state._replace(params=params),
      jax.tree.map(lambda a: a.sharding, abstract),
  )


def start(path, model, vocabulary, partitioner=Partitioner()):
  source = initial_checkpoint.InitialCheckpoint(str(path))
  state = fresh_state(model, partitioner)
  plan = initial_checkpoint.plan_start(
      source, describe(model), vocabulary, state.params
  )
  return initial_checkpoint.load_start(plan, state)


def flat(tree) -> dict[str, np.ndarray]:
  return {
      name: np.asarray(leaf)
      for name, leaf in traverse_util.flatten_dict(tree, sep='/').items()
  }


@pytest.mark.parametrize(
    'path, passage', [(LEGACY, False), (ORBAX, True)], ids=['sde', 'ade']
)
def test_a_t5x_encoder_starts_one_or_both_towers(path, passage, vocabulary):
  model, golden = golden_model(passage), read_golden(ORBAX)
  partitioner = Partitioner(2, (('embed', 'data'),))
  before = fresh_state(model, partitioner).params
  after = start(path, model, vocabulary, partitioner).params
  shardings = jax.tree.map(lambda x: x.sharding, before)
  assert jax.tree.map(lambda x: x.sharding, after) == shardings
  params, fresh = flat(after), flat(before)
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


@pytest.mark.parametrize(
    'sizes, said',
    [
        (dict(activations=('relu',)), 'encoder.activations.*t5_1_0/'),
        (dict(num_layers=2), 'no place for encoder/layers_2/.*DROP'),
        (dict(mlp_dim=32), r'mlp.wi_0.kernel has the shape \(32, 64\)'),
        ({}, '512 token embeddings.*8000 pieces'),
    ],
)
def test_another_architecture_is_refused_by_name(vocabulary, sizes, said):
  model = golden_model(**sizes)
  of_model = vocabulary if sizes else Vocabulary('python_code_8k')
  params = make_plan(model).abstract.params
  with pytest.raises(UserError, match=said):
    initial_checkpoint.plan_start(
        str(LEGACY), describe(model), of_model, params
    )


def test_activations_are_those_of_the_tower_that_a_rule_takes():
  there = golden_model(passage=True)
  tensors = {
      name: Tensor(name, shape, lambda: None)
      for name, shape in param_shapes(there).items()
  }
  silu = there.encoder.clone(activations=('silu', 'linear'))
  weights = Weights('kind', 'there', tensors, there.encoder, silu).check()
  rules = [('(.*)', r'passage_\1')]
  drop = ['(token_embedder|encoder|projection)/.*']
  target = golden_model()
  sources = assignment.assign(param_shapes(target), weights, rules, drop)
  with pytest.raises(UserError, match="'silu', 'linear'.* its passage_encoder"):
    initial_checkpoint.check_activations(weights, describe(target), sources)
  target = golden_model(activations=('silu', 'linear'))
  initial_checkpoint.check_activations(weights, describe(target), sources)


def test_rules_of_gin(tmp_path, capsys):
  first = tiny_evaluation.shared_model()
  flags = tiny_run.flags(tmp_path, f'--gin.INITIAL_CHECKPOINT_PATH={first}')
  check.main([
      *flags, '--no_compile',
      "--gin.INITIAL_CHECKPOINT_RULES=(('projection/.*', None),)",
      "--gin.INITIAL_CHECKPOINT_DROP=('projection/.*',)",
  ])
  line = '(dualenc_jax model_dir): 12 tensors; fresh: projection/kernel.'
  assert f'Starting from {first} {line}' in capsys.readouterr().out
  # One that is wrong leaves nothing behind.
  flags.append("--gin.INITIAL_CHECKPOINT_RULES=(('encodr/.*', None),)")
  with pytest.raises(UserError, match="RULES: 'encodr/.*' matches no param"):
    train.main([*flags, f'--model_dir={tmp_path / "model"}'])
  assert not (tmp_path / 'model' / 'config.gin').exists()
