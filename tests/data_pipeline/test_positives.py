"""All passages of a query, against Python's sets."""

import numpy as np
import pytest
import text_reading

from dualenc_jax.data import Batches, picks
from dualenc_jax.data.picks import Positives
from dualenc_jax.losses import blocks


def pairs(count, queries, passages, seed=0):
  rng = np.random.default_rng(seed)
  return (
      rng.integers(queries, size=count).astype(np.uint64),
      1000 + rng.integers(passages, size=count).astype(np.uint64),
  )


def sets(queries, passages):
  found = {}
  for query, passage in zip(queries.tolist(), passages.tolist()):
    found.setdefault(query, set()).add(passage)
  return found


def test_others_are_those_of_the_sets():
  queries, passages = pairs(200, 40, 30)
  made, known = Positives(queries, passages), sets(queries, passages)
  assert made.most == max(map(len, known.values())) - 1
  found = made.others(queries, passages[:, None])
  for query, passage, row in zip(queries, passages, found.tolist()):
    others = known[int(query)] - {int(passage)}
    assert {*row} - {int(passage)} == others
    assert row.count(int(passage)) == made.most - len(others)


def test_of_many_those_of_the_batch_come_first(monkeypatch):
  monkeypatch.setattr(picks, 'MOST', 4)
  queries, passages = pairs(300, 3, 60)
  made, known = Positives(queries, passages), sets(queries, passages)
  assert made.most == 4
  batch = np.stack([passages[:5], passages[5:10]], axis=1)
  for query, row, own in zip(queries, made.others(queries[:5], batch), batch):
    here = known[int(query)] & {*batch.ravel().tolist()} - {int(own[0])}
    assert {*row.tolist()} >= {*sorted(here)[:4]}
    assert {*row.tolist()} <= known[int(query)]


def test_one_passage_each_is_none():
  made = Positives(np.arange(5, dtype=np.uint64), np.arange(5, dtype=np.uint64))
  assert made.most == 0


@pytest.mark.parametrize('k', [0, 2])
def test_batches_have_them_and_negatives_are_counted(k):
  cache = text_reading.random_cache(96)
  cache.query_fingerprints, cache.passage_fingerprints = pairs(96, 30, 40)
  hard = cache.negative_fingerprints
  hard[::3] = np.resize(cache.passage_fingerprints, len(hard))[::3]
  data = Batches([cache], 32, 0, 16, 64, k)
  known = sets(cache.query_fingerprints, cache.passage_fingerprints)
  batch = data(1)
  several = data.picker.positives.most
  assert batch['positive_ids'].shape == (32, several, 2) and several > 0

  def numbers(ids):
    return ids[..., 0].astype(np.uint64) | ids[..., 1].astype(np.uint64) << 32

  own = numbers(batch['passage_ids']).tolist()
  queries = numbers(batch['query_ids']).tolist()
  for query, passage, row in zip(
      queries, own, numbers(batch['positive_ids']).tolist()
  ):
    assert {*row, passage} == known[query]
    assert len(known[query]) <= picks.MOST
  texts = blocks.Fingerprints(**data.picker.fingerprints(1))
  wanted = sum(
      passage not in known[query] and queries[j] != query
      for query in queries
      for j, passage in enumerate(own)
  )
  # The order of the pairs of a batch is free, the mean is not.
  found = blocks.mean_negatives(blocks.QUERY_PASSAGES, texts, True)
  assert found == pytest.approx(wanted / 32)
  if k:
    hard = texts.negatives[texts.negative_valid].tolist()
    wanted = sum(h not in known[query] for query in queries for h in hard)
    found = blocks.mean_negatives(blocks.QUERY_HARD, texts, True)
    assert found == pytest.approx(wanted / 32)
