"""A model small enough to train in tests, and batches for it."""

import functools

from flax import linen as nn
import jax
import numpy as np
import optax

from dualenc_jax.data import layouts
from dualenc_jax.losses import (
  init as loss_params,
  LearnableTemperature,
  SamToNe,
  Similarity,
)
from dualenc_jax.models import abstract_params, DualEncoder
from dualenc_jax.models.dual_encoder import Projection
from dualenc_jax.models.layers import TokenEmbedder
from dualenc_jax.models.t5_encoder import T5Encoder
from dualenc_jax.objectives import Contrastive
from dualenc_jax.parallel import partitioning
from dualenc_jax.training import Optimizer, Partitioner, step as step_lib

VOCAB = 64
LOSS = SamToNe(both_towers=True)
SIMILARITY = Similarity(LearnableTemperature(0.1))


class OneDevice(Partitioner):
  """A 1x1 mesh, of the first device."""

  @functools.cached_property
  def mesh(self):
    return jax.make_mesh(
        (1, 1), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[:1],
    )


def make_model(separate_towers=False, width=32, **options):
  """SDE, or ADE-SPL: one layer, four heads; options are the encoder's."""
  sizes = dict(num_layers=1, num_heads=4, head_dim=8, mlp_dim=64)
  encoder = T5Encoder(**(sizes | options))
  own = {}
  if separate_towers:
    own = {
        'passage_token_embedder': TokenEmbedder(VOCAB, width),
        'passage_encoder': encoder.clone(),
    }
  return DualEncoder(
      TokenEmbedder(VOCAB, width), encoder, Projection(16), **own
  )


def make_batch(size=16, num_negatives=0, seed=0):
  """The texts of `make_tokens`, a text a row; host arrays."""
  return padded(make_tokens(size, num_negatives, seed))


def padded(tokens):
  """A batch of `make_tokens` as the step takes it, every pair a cell."""
  passages = [tokens['passage_tokens'][:, None]]
  batch = {k: v for k, v in tokens.items() if not k.endswith('_tokens')}
  if 'negative_tokens' in tokens:
    passages.append(tokens['negative_tokens'])
    batch['negative_valid'] = tokens['negative_tokens'].any(axis=-1)
  return batch | {
      'queries': layouts.padded_rows(tokens['query_tokens'][:, None]),
      'passages': layouts.padded_rows(np.concatenate(passages, axis=1)),
  }


def make_tokens(size=16, num_negatives=0, seed=0):
  """Random tokens of random lengths, some texts twice."""
  rng = np.random.default_rng(seed)

  def tokens(rows, length):
    drawn = rng.integers(2, VOCAB, (rows, length))
    lengths = rng.integers(1, length + 1, (rows, 1))
    return np.where(np.arange(length) < lengths, drawn, 0).astype(np.int32)

  def ids(tokens):
    _, which = np.unique(
        tokens.reshape(-1, tokens.shape[-1]), axis=0, return_inverse=True
    )
    pairs = np.stack([which, which + 1000], axis=-1).astype(np.uint32)
    return pairs.reshape(*tokens.shape[:-1], 2)

  query, passage = tokens(size, 6), tokens(size, 10)
  query[1], passage[2] = query[0], passage[3]
  batch = {
      'query_tokens': query, 'passage_tokens': passage,
      'query_ids': ids(query), 'passage_ids': ids(passage),
  }
  if num_negatives:
    negatives = tokens(size * num_negatives, 10)
    negatives[5] = 0  # A query with fewer hard negatives.
    batch['negative_tokens'] = negatives.reshape(size, num_negatives, 10)
    batch['negative_ids'] = ids(batch['negative_tokens']) + np.uint32(5000)
  return batch


def recording_sgd():
  """SGD whose state holds the last gradients."""
  return Optimizer(
      optax.chain(optax.trace(decay=0.0), optax.scale(-0.1)), lambda step: 0.1
  )


def plan(
    partitioner, optimizer=None, model=None, loss=LOSS, similarity=SIMILARITY,
    seed=0, micro_batch_size=None,
):
  """Abstract state with shardings, initialiser and step."""
  return step_lib.plan(
      Contrastive(
          model or make_model(), loss, similarity,
          micro_batch_size=micro_batch_size,
      ),
      optimizer or recording_sgd(), partitioner, seed,
  )


@functools.cache
def unsharded_params(separate_towers=False, width=32):
  """Parameters of `make_model`; host arrays."""
  return init_params(make_model(separate_towers, width))


def init_params(model, loss=LOSS, similarity=SIMILARITY, seed=0):
  """Random parameters of a model, and those of a loss; host arrays.

  No initialiser is compiled.
  """
  params = nn.unbox(abstract_params(model))
  rng = np.random.default_rng(seed)

  def random(path, leaf):
    values = rng.standard_normal(leaf.shape, dtype=np.float32)
    # Scales are near one, and products keep the scale of what they are of;
    # layers in a scan have an axis before.
    if path[-1].key == 'scale':
      return 1 + 0.1 * values
    return values / leaf.shape[-2] ** 0.5

  params = jax.tree.map_with_path(random, params)
  table = params['token_embedder']['embedding']
  for name in ('token_embedder', 'passage_token_embedder'):
    if name in params:
      params[name]['embedding'] *= len(table) ** 0.5
  own = jax.device_get(loss_params(loss, similarity))
  return {**params, 'loss': own} if own else params


def make_state(abstract, separate_towers=False, params=None):
  """The initial state, for optimizers that start from zeros.

  Much faster than to compile its initialiser for the mesh.
  """
  if params is None:
    params = unsharded_params(separate_towers)
  zeros = jax.tree.map(
      lambda a: np.zeros(a.shape, a.dtype), abstract.opt_state
  )
  shardings = tuple(jax.tree.map(lambda a: a.sharding, abstract))
  return step_lib.TrainState(
      *jax.device_put((np.int32(0), params, zeros, (), ()), shardings)
  )


def assert_gradients_near(got, want, tolerance=1e-5):
  """To so much of the largest entry of each, which is not zero."""
  for path, a, b in zip(
      partitioning.leaf_paths(want), jax.tree.leaves(got),
      jax.tree.leaves(want), strict=True,
  ):
    scale = np.abs(b).max()
    assert scale > 0, path
    error = np.abs(a - b).max() / scale
    assert error < tolerance, f'{path}: {error:.2e}'
