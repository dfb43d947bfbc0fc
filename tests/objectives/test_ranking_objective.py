"""Training a cross-encoder: one value in every layout and on every mesh."""

import dataclasses
import functools

from flax import linen as nn
import jax
import numpy as np
import pytest
import text_reading
import tiny_training
import two_steps

from dualenc_jax import losses
from dualenc_jax.data import Batches, Packed, Padded, Template
from dualenc_jax.data.text.template import TokenTemplate
from dualenc_jax.models import CrossEncoder, ScoreHead, T5Encoder, TokenEmbedder
from dualenc_jax.objectives import Ranking, ranking
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

SIZE, QUERY, PASSAGE, K, OTHERS = 16, 8, 24, 2, 2
TEMPLATE = TokenTemplate(np.array([5, 6]), np.array([7]), np.array([8, 1]), 24)


def make_cache():
  return text_reading.random_cache(
      64, 0, QUERY, PASSAGE, vocab=tiny_training.VOCAB
  )


def make_batch(cache, layout, cells=1, step=0):
  return Batches(
      [cache], SIZE, 0, QUERY, PASSAGE, K, layout=layout, cells=cells,
      template=TEMPLATE, num_others=OTHERS,
  )(step)


def make_objective(layout=Padded(), pooling='mean', rate=0.0, micro=None):
  model = CrossEncoder(
      TokenEmbedder(tiny_training.VOCAB, 32),
      T5Encoder(1, 4, 8, 64, dropout_rate=rate), ScoreHead(pooling),
  )
  return Ranking(model, losses.Listwise(), Template(), K, OTHERS, micro, layout)


def plain_scores(objective, params, cache, batch):
  """Pair by pair, each text alone, without the library's batches."""
  tokens = {
      name: getattr(cache, f'{name}_tokens')
      for name in ('query', 'passage', 'negative')
  }
  by_ids = {
      tuple(ids_of(cache, name, i)): tokens[name].row(i)
      for name in ('negative', 'passage') for i in range(len(tokens[name]))
  }
  queries = {
      tuple(ids_of(cache, 'query', i)): tokens['query'].row(i)
      for i in range(len(tokens['query']))
  }
  out = np.full((SIZE, 1 + K + OTHERS), np.nan)
  score = jax.jit(objective.model.apply)
  for i in range(SIZE):
    query = queries[tuple(batch['query_ids'][i])]
    ids = [batch['passage_ids'][i], *batch['negative_ids'][i]]
    valid = [True, *batch['negative_valid'][i]]
    for c, (own, is_there) in enumerate(zip(ids, valid)):
      if not is_there:
        continue
      passage = by_ids[tuple(own)][:-1]
      room = TEMPLATE.length - 5 - (len(query) - 1)
      text = [5, 6, *query[:-1], 7, *passage[:room], 8, 1]
      text += [0] * (TEMPLATE.length - len(text))
      out[i, c] = score({'params': params}, np.array([text], np.int32))[0]
  return out


def ids_of(cache, name, row):
  value = int(getattr(cache, f'{name}_fingerprints')[row])
  return value & 0xFFFFFFFF, value >> 32


@pytest.mark.parametrize(
    'layout, cells, pooling',
    [(Packed(), 1, 'first'), (Packed(), 4, 'mean')],
)
def test_scores_are_those_of_each_pair_alone(layout, cells, pooling):
  cache, objective = make_cache(), make_objective(layout, pooling)
  batch = make_batch(cache, layout, cells)
  params = nn.unbox(jax.jit(objective.init)(jax.random.key(1)))
  found = np.asarray(jax.jit(objective.scores)(params, batch))
  wanted = plain_scores(objective, params, cache, batch)
  there = ~np.isnan(wanted)
  assert there[:, 0].all() and 0.5 < there.mean() < 1
  np.testing.assert_allclose(found[there], wanted[there], rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_a_step_is_one_on_a_mesh():
  two_steps.assert_same(
      make_objective(rate=0.2), make_objective(Packed(), rate=0.2, micro=8),
      2, functools.partial(make_batch, make_cache()), SIZE, 2e-5,
  )


def test_others_are_never_passages_of_the_same_query():
  cache = make_cache()
  # Half of the pairs have one query, and half one passage.
  for name, rows in (('query', slice(0, 32)), ('passage', slice(16, 48))):
    fingerprints = getattr(cache, f'{name}_fingerprints')
    fingerprints[rows] = fingerprints[rows.start]
  batch = make_batch(cache, Padded())
  valid = batch['negative_valid'][:, K:]
  ids = batch['negative_ids'][:, K:]
  assert 0 < valid.sum() < valid.size
  own = batch['passage_ids'][:, None]
  assert not (np.all(ids == own, axis=-1) & valid).any()
  by_passage = {}
  for query, passage in zip(batch['query_ids'], batch['passage_ids']):
    by_passage.setdefault(tuple(passage), set()).add(tuple(query))
  for query, row, there in zip(batch['query_ids'], ids, valid):
    for passage, is_there in zip(row, there):
      if is_there and len(by_passage[tuple(passage)]) == 1:
        assert by_passage[tuple(passage)] != {tuple(query)}


def test_no_passage_of_a_query_is_its_negative():
  ids = np.arange(20, dtype=np.uint32).reshape(2, 5, 2)
  batch = {
      'passage_ids': ids[:, 0], 'positive_ids': ids[:, 4:],
      # The passage again, another one, one that only shares a word, missing.
      'negative_ids': np.stack([
          ids[:, 0], ids[:, 4], ids[:, 0] + np.uint32([0, 1]), ids[:, 2]
      ], axis=1),
      'negative_valid': np.array([[True, True, True, False]] * 2),
  }
  scores = np.zeros((2, 5), np.float32)
  lists = ranking.lists_of(batch, scores)
  np.testing.assert_array_equal(
      lists.valid, [[True, False, False, True, False]] * 2
  )
  del batch['positive_ids']
  lists = ranking.lists_of(batch, scores)
  np.testing.assert_array_equal(
      lists.valid, [[True, False, True, True, False]] * 2
  )


def test_what_cannot_be():
  objective = make_objective()
  with pytest.raises(UserError, match='learns from negatives: set NUM_NEG'):
    dataclasses.replace(objective, num_negatives=0, num_others=0)
  with pytest.raises(UserError, match='is 16; expected 0 or more'):
    Batches([make_cache()], SIZE, 0, QUERY, PASSAGE, num_others=SIZE)
