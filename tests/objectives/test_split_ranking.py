"""Training a split re-ranker: one value in every layout and on every mesh."""

import functools

from flax import linen as nn
import jax
import numpy as np
import pytest
import text_reading
import tiny_training
import two_steps

from dualenc_jax import losses
from dualenc_jax.data import Batches, Packed, Padded
from dualenc_jax.models import CrossEncoder, ScoreHead, split_ranker
from dualenc_jax.objectives import SplitRanking
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

SIZE, QUERY, PASSAGE, K, OTHERS = 16, 8, 24, 2, 1


def make_batch(cache, layout, cells=1, step=0):
  return Batches(
      [cache], SIZE, 0, QUERY, PASSAGE, K, layout=layout, cells=cells,
      num_others=OTHERS,
  )(step)


def make_cache():
  return text_reading.random_cache(
      64, 0, QUERY, PASSAGE, vocab=tiny_training.VOCAB
  )


def make_objective(layout=Padded(), rate=0.0, micro=None):
  parts = tiny_training.make_model(dropout_rate=rate)
  model = split_ranker(parts.token_embedder, parts.encoder, 3, (4, 5))
  return SplitRanking(model, losses.Listwise(), K, OTHERS, micro, layout)


def test_scores_are_those_of_each_pair_alone():
  cache, objective = make_cache(), make_objective(Packed())
  batch = make_batch(cache, Packed(), 4)
  params = nn.unbox(jax.jit(objective.init)(jax.random.key(1)))
  found = np.asarray(jax.jit(objective.scores)(params, batch))

  texts = {
      int(key): tokens.row(i)
      for name in ('query', 'passage', 'negative')
      for tokens in [getattr(cache, f'{name}_tokens')]
      for i, key in enumerate(getattr(cache, f'{name}_fingerprints'))
  }

  def padded(ids, length):
    rows = np.zeros((len(ids), length), np.int32)
    for row, (low, high) in zip(rows, ids.tolist()):
      tokens = texts[low + (high << 32)]
      row[: len(tokens)] = tokens
    return rows

  queries = np.repeat(batch['query_ids'], 1 + K + OTHERS, axis=0)
  passages = np.concatenate(
      [batch['passage_ids'][:, None], batch['negative_ids']], axis=1
  )
  there = np.pad(batch['negative_valid'], ((0, 0), (1, 0)), constant_values=1)
  ids = np.where(there[..., None], passages, passages[:, :1]).reshape(-1, 2)
  wanted = jax.jit(objective.model.apply)(
      {'params': params}, padded(queries, QUERY), padded(ids, PASSAGE)
  )
  wanted = np.asarray(wanted).reshape(there.shape)
  assert 0.5 < there.mean() < 1
  np.testing.assert_allclose(found[there], wanted[there], rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_a_step_is_one_on_a_mesh():
  two_steps.assert_same(
      make_objective(rate=0.2), make_objective(Packed(), 0.2, 8), 2,
      functools.partial(make_batch, make_cache()), SIZE, 2e-5,
  )


def test_another_model_is_refused():
  parts = tiny_training.make_model()
  model = CrossEncoder(parts.token_embedder, parts.encoder, ScoreHead())
  with pytest.raises(UserError, match='architectures/split_ranker.gin after'):
    SplitRanking(model, losses.Listwise(), K)
