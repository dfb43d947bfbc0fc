"""Batches: pure in seed and step, complete in an epoch, K hard negatives."""

import types

import numpy as np
import pytest

from dualenc_jax.data.batches import Batches
from dualenc_jax.data.fingerprint import as_uint32_pairs
from dualenc_jax.data.fingerprint import fingerprints
from dualenc_jax.data.ragged import Ragged
from dualenc_jax.errors import UserError

COUNTS = [0, 1, 2, 3, 5, 0, 7, 2, 1, 4, 3]
QUERIES = [[100 + i, 1] for i in range(len(COUNTS))]
PASSAGES = [[200 + i] * (1 + i % 4) + [1] for i in range(len(COUNTS))]
NEGATIVES = [
    [[300 + 10 * i + k, 7, 1] for k in range(count)]
    for i, count in enumerate(COUNTS)
]


def make_cache(negatives=NEGATIVES):
  """The part of a Cache that batches read, in memory."""
  flat = [row for rows in negatives for row in rows]
  ragged = {
      'query': Ragged.from_rows(QUERIES, np.uint16),
      'passage': Ragged.from_rows(PASSAGES, np.uint16),
      'negative': Ragged.from_rows(flat, np.uint16),
  }

  class Rows(types.SimpleNamespace):

    def __len__(self):
      return len(QUERIES)

  offsets = np.cumsum([0] + [len(rows) for rows in negatives])
  return Rows(
      header={
          'task': 'toy',
          'split': 'train',
          'query_length': 4,
          'passage_length': 6,
      },
      negative_offsets=offsets,
      **{f'{name}_tokens': rows for name, rows in ragged.items()},
      **{f'{name}_fingerprints': fingerprints(r) for name, r in ragged.items()},
  )


def batches(**options):
  defaults = dict(batch_size=3, seed=0, query_length=4, passage_length=6)
  return Batches(make_cache(), **(defaults | options))


def examples_of(batch):
  """Indices of a batch's examples, read off its tokens."""
  return (batch['query_tokens'][:, 0] - 100).tolist()


def pad(row, length):
  return row + [0] * (length - len(row))


def test_shapes_dtypes_and_content():
  batch = batches(num_negatives=2)(0)
  expected = {
      'query_tokens': ((3, 4), np.int32),
      'passage_tokens': ((3, 6), np.int32),
      'query_ids': ((3, 2), np.uint32),
      'passage_ids': ((3, 2), np.uint32),
      'negative_tokens': ((3, 2, 6), np.int32),
      'negative_ids': ((3, 2, 2), np.uint32),
  }
  assert {k: (v.shape, v.dtype) for k, v in batch.items()} == expected
  for row, i in enumerate(examples_of(batch)):
    assert batch['query_tokens'][row].tolist() == pad(QUERIES[i], 4)
    assert batch['passage_tokens'][row].tolist() == pad(PASSAGES[i], 6)
    low, high = map(int, batch['passage_ids'][row])
    (own,) = fingerprints(Ragged.from_rows([PASSAGES[i]], np.uint16)).tolist()
    assert low + (high << 32) == own


def test_without_negatives_there_are_no_keys_of_theirs():
  assert not [key for key in batches()(0) if key.startswith('negative')]


def test_a_batch_is_a_pure_function_of_seed_and_step():
  forwards, backwards = batches(num_negatives=2), batches(num_negatives=2)
  steps = list(range(8))
  there = {step: forwards(step) for step in steps}
  back = {step: backwards(step) for step in reversed(steps)}
  for step in steps:
    for key, value in there[step].items():
      np.testing.assert_array_equal(value, back[step][key])


def test_seeds_differ():
  orders = {
      tuple(examples_of(batches(seed=seed, batch_size=11)(0)))
      for seed in range(5)
  }
  assert len(orders) == 5


def test_every_example_once_an_epoch_up_to_the_remainder():
  data = batches()
  assert data.num_examples == 11 and data.steps_per_epoch == 3
  orders, left_out = set(), set()
  for epoch in range(20):
    seen = [i for s in range(3) for i in examples_of(data(3 * epoch + s))]
    assert len(seen) == len(set(seen)) == 9
    orders.add(tuple(seen))
    left_out |= set(range(11)) - set(seen)
  assert len(orders) == 20
  assert left_out == set(range(11))


def test_host_slices_partition_the_batch():
  data = batches(batch_size=8, num_negatives=1)
  whole = data(4)
  parts = [data(4, slice(start, start + 2)) for start in range(0, 8, 2)]
  for key, value in whole.items():
    np.testing.assert_array_equal(
        np.concatenate([part[key] for part in parts]), value
    )


@pytest.mark.parametrize('k', [1, 2, 3, 8])
def test_negatives_rotate_by_epoch_and_fall_short_to_zero(k):
  data = batches(batch_size=11, num_negatives=k)
  for epoch in range(5):
    batch = data(epoch)
    for row, i in enumerate(examples_of(batch)):
      for number in range(k):
        tokens = batch['negative_tokens'][row, number].tolist()
        low, high = map(int, batch['negative_ids'][row, number])
        if number >= COUNTS[i]:
          assert tokens == [0] * 6 and low == high == 0
          continue
        chosen = NEGATIVES[i][(epoch * k + number) % COUNTS[i]]
        assert tokens == pad(chosen, 6)
        (own,) = fingerprints(Ragged.from_rows([chosen], np.uint16)).tolist()
        assert low + (high << 32) == own


@pytest.mark.parametrize('k', [0, 5])
@pytest.mark.parametrize('step', [0, 4])
def test_fingerprints_are_those_of_the_batch(k, step):
  made = batches(num_negatives=k)
  batch, texts = made(step), made.fingerprints(step)
  for name, ids in (('query', 'query_ids'), ('passage', 'passage_ids')):
    np.testing.assert_array_equal(as_uint32_pairs(texts[name]), batch[ids])
  assert texts['negatives'].shape == texts['negative_valid'].shape == (3, k)
  assert texts['negative_valid'].dtype == bool
  if k:
    real = batch['negative_tokens'].any(axis=-1)
    np.testing.assert_array_equal(texts['negative_valid'], real)
    np.testing.assert_array_equal(
        as_uint32_pairs(texts['negatives'])[real], batch['negative_ids'][real]
    )
    assert 0 < real.sum() < real.size


def test_batch_size_beyond_the_examples():
  with pytest.raises(UserError, match='batch_size is 12, .* 11 examples'):
    batches(batch_size=12)


def test_negatives_asked_of_a_split_without_any():
  cache = make_cache([[] for _ in COUNTS])
  with pytest.raises(UserError, match="num_negatives is 1, .*'toy'.*'train'"):
    Batches(cache, 3, 0, 4, 6, num_negatives=1)


@pytest.mark.parametrize('name', ['query_length', 'passage_length'])
def test_lengths_that_would_cut_rows(name):
  with pytest.raises(UserError, match=rf'Batches\.{name} is 3'):
    batches(**{name: 3})
