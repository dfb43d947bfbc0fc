"""Query towers of fewer layers: which layers they start from."""

import re

from flax import linen as nn
import jax
import numpy as np
import pytest
import tiny_evaluation
import tiny_run
import tiny_weights

from dualenc_jax.checkpoints import formats
from dualenc_jax.cli import check
from dualenc_jax.models import (
  describe,
  DualEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.models.dual_encoder import abstract_params
from dualenc_jax.training import initial_checkpoint
from dualenc_jax.training.step import TrainState
from dualenc_jax.utils.errors import UserError


@pytest.mark.parametrize(
    'which, wanted, there, chosen',
    [
        ('spread', 4, 12, [0, 4, 7, 11]),
        ('spread', 1, 12, [11]),
        ((3, 1), 2, 4, [3, 1]),
    ],
)
def test_layers_by_name(which, wanted, there, chosen):
  assert initial_checkpoint.choose_layers(which, wanted, there) == chosen


@pytest.mark.parametrize(
    'which, wanted, message',
    [
        ('middle', 2, "is 'middle'; expected spread, scratch or 2 numbers"),
        ('spread', 13, 'QUERY_LAYERS is 13, but the checkpoint has only 12'),
        ((0, 12), 2, r'is \(0, 12\); .* 2 numbers from 0 to 11'),
    ],
)
def test_layers_that_are_not_there(which, wanted, message):
  with pytest.raises(UserError, match=message):
    initial_checkpoint.choose_layers(which, wanted, 12)


def model(layers, passage_layers=None):
  """Towers that share all, or the projection alone."""

  def parts(count):
    return TokenEmbedder(8064, 16), T5Encoder(count, 2, 8, 16)

  own = parts(passage_layers) if passage_layers else ()
  return DualEncoder(*parts(layers), Projection(8), *own)


@pytest.fixture
def plan(monkeypatch):
  """Plans the start of a model from checkpoints in memory, by their names."""
  there = {'siamese': model(3), 'two': model(3, 3), 'small': model(2)}
  weights = {
      name: tiny_weights.random(each, seed=seed)
      for seed, (name, each) in enumerate(there.items())
  }
  monkeypatch.setattr(formats, 'read', weights.__getitem__)

  def make(target, path, **how):
    return initial_checkpoint.plan_start(
        initial_checkpoint.InitialCheckpoint(path, **how), describe(target),
        tiny_weights.SHIPPED, nn.unbox(abstract_params(target)),
    )

  return make


@pytest.mark.parametrize(
    'path, which, layers',
    [('siamese', 'spread', (0, 2)), ('siamese', (1, 0), (1, 0)),
     ('two', (1, 2), (1, 2))],
)
def test_a_tower_of_two_starts_from_layers_of_three(plan, path, which, layers):
  """Of two towers, those of the passage tower."""
  own = 'passage_' if path == 'two' else ''

  def source(name):
    if name.startswith('projection'):
      return name
    if name.startswith('passage_'):
      return own + name.removeprefix('passage_')
    return own + re.sub(
        r'layers_(\d)', lambda found: f'layers_{layers[int(found[1])]}', name
    )

  start = plan(model(2, 3), path, query_layers=which)
  assert start.sources == {name: source(name) for name in start.sources}
  # Embedders and projection, layers of 9, relative positions and norms.
  assert len(start.sources) == 2 + 1 + 5 * 9 + 2 * 2


def test_from_scratch(plan):
  start = plan(model(3, 3), 'siamese', query_layers='scratch')
  for name, source in start.sources.items():
    is_fresh = name.startswith(('encoder', 'token_embedder'))
    wanted = None if is_fresh else name.removeprefix('passage_')
    assert source == wanted


def test_from_a_checkpoint_of_its_own(plan):
  target = model(2, 3)
  start = plan(target, 'siamese', query_path='small')
  params = jax.tree.map(
      lambda x: jax.numpy.zeros(x.shape), nn.unbox(abstract_params(target))
  )
  found = initial_checkpoint.load_start(start, TrainState(0, params, ())).params
  small, siamese = map(formats.read, ('small', 'siamese'))
  for path, array in jax.tree.leaves_with_path(found):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    of_query = name.startswith(('encoder', 'token_embedder'))
    there = small if of_query else siamese
    tensor = there.tensors[name.removeprefix('passage_')]
    np.testing.assert_array_equal(array, tensor.read(), err_msg=name)
  with pytest.raises(UserError, match='QUERY_LAYERS is 3, and .* has 2 layers'):
    plan(model(3, 3), 'siamese', query_path='small')


def test_macros_of_gin(tmp_path):
  shared = tiny_evaluation.shared_model()
  start = f'--gin.INITIAL_CHECKPOINT_PATH={shared}'
  flags = tiny_run.flags(tmp_path, start, '--gin.QUERY_LAYERS_FROM=(0,)')
  with pytest.raises(UserError, match='the towers share their encoder. Give'):
    check.main([*flags, '--no_compile'])
  light = tiny_run.flags(
      tmp_path, '--gin_file=architectures/light_query.gin', start
  )
  bad = '--gin.QUERY_LAYERS=9', f'--gin.QUERY_CHECKPOINT_PATH={shared}'
  with pytest.raises(UserError, match='QUERY_LAYERS is 9, and .* layers'):
    check.main([*light, *bad, '--no_compile'])
  # Another architecture after it leaves no trace.
  check.main([*light, '--gin_file=architectures/sde.gin', '--no_compile'])
