"""The order of examples: pure, complete; and all passages of a query."""

import collections

import numpy as np
import pytest
import text_reading

from dualenc_jax.data import Batches, order as order_lib
from dualenc_jax.data.order import Order, Positives
from dualenc_jax.data.text.ragged import from_uint32_pairs


def draws(order, steps):
  """Examples and epochs of some steps, one after the other."""
  return [np.concatenate(parts) for parts in zip(*map(order, steps))]


def test_one_source_is_a_permutation_an_epoch():
  order = Order((10,), (1.0,), 3, 5)
  for epoch in range(4):
    examples, epochs = draws(order, range(3 * epoch, 3 * epoch + 3))
    want = np.random.default_rng([5, epoch]).permutation(10)[:9]
    np.testing.assert_array_equal(examples, want)
    assert set(epochs) == {epoch}


def test_a_mixture_is_the_same_sequence_for_every_batch_size():
  """Step s has the positions s B to s B + B - 1 of one sequence."""
  sizes, rates = (50, 20, 300), (0.5, 0.2, 0.3)
  whole = Order(sizes, rates, 7000, 1)(0)
  parts = draws(Order(sizes, rates, 64, 1), range(7000 // 64))
  for want, got in zip(whole, parts):
    np.testing.assert_array_equal(got, want[: len(got)])


def test_a_step_of_a_mixture_does_not_need_those_before():
  """Also over the edges of blocks and of epochs."""
  sizes, rates = (40_000, 100), (0.9, 0.1)
  forwards, fresh = Order(sizes, rates, 5000, 3), Order(sizes, rates, 5000, 3)
  there = [forwards(step) for step in range(40)]
  assert 40 * 5000 > 3 * order_lib.BLOCK
  for step in (39, 13, 0, 26):
    for want, got in zip(there[step], fresh(step)):
      np.testing.assert_array_equal(got, want)


def test_every_source_goes_through_its_epochs_whole():
  sizes, rates = (37, 5, 11), (0.7, 0.1, 0.2)
  examples, epochs = draws(Order(sizes, rates, 100, 0), range(60))
  first = 0
  for size in sizes:
    own = (examples >= first) & (examples < first + size)
    # The n-th draw of a source is of its epoch n // size.
    np.testing.assert_array_equal(epochs[own], np.arange(own.sum()) // size)
    for epoch in range(int(own.sum()) // size):
      of_epoch = examples[own][size * epoch : size * (epoch + 1)]
      assert sorted(of_epoch) == list(range(first, first + size))
    first += size


@pytest.mark.parametrize(
    'rates', [(0.001, 0.999), (1 / 3, 1 / 3, 1 / 3), (0.7, 0.3)]
)
def test_rates_hold_exactly_over_a_block(rates, monkeypatch):
  monkeypatch.setattr(order_lib, 'BLOCK', 1000)
  sizes = (17,) * len(rates)
  examples, _ = draws(Order(sizes, rates, 100, 0), range(30))
  for block in examples.reshape(3, 1000):
    counts = collections.Counter((block // 17).tolist())
    for source, rate in enumerate(rates):
      assert abs(counts[source] - 1000 * rate) < 1
    # Mixed, not one source after the other.
    assert (np.diff(block // 17) != 0).sum() >= min(counts.values()) / 2


@pytest.mark.parametrize(
    'rates', [(1 - 1e-3, 1e-3), (0.9, 0.0999, 1e-4), (1 - 3e-4,) + (1e-4,) * 3]
)
def test_sources_of_small_rates_are_drawn_in_the_long_run(rates, monkeypatch):
  """Also those of less than one pair a block."""
  monkeypatch.setattr(order_lib, 'BLOCK', 100)
  sizes = (1000,) * len(rates)
  order = Order(sizes, rates, 1000, 0)
  examples, epochs = draws(order, range(60))
  counts = np.zeros(len(rates))
  for i, batch in enumerate(examples.reshape(60, 1000), 1):
    counts += np.bincount(batch // 1000, minlength=len(rates))
    assert np.abs(counts - 1000 * i * np.array(rates)).max() <= 2
  assert counts.min() > 0
  fresh = Order(sizes, rates, 1000, 0)
  for want, got in zip(order(41), fresh(41)):
    np.testing.assert_array_equal(got, want)


def test_which_source_is_drawn_says_nothing_of_its_example():
  """With as many examples as a block has positions, and equal rates."""
  size = order_lib.BLOCK
  examples, _ = draws(Order((size, size), (0.5, 0.5), 2**13, 0), range(8))
  is_first = examples < size
  for source, own in ((0, is_first), (1, ~is_first)):
    # Its n-th example is of the lower half as often where position n is of the
    # first source as elsewhere: half the time, give or take 0.004.
    lower = examples[own] - source * size < size // 2
    together = np.mean(lower[: size // 4] == is_first[: size // 4])
    assert together == pytest.approx(0.5, abs=0.03)


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
  assert made.count == max(map(len, known.values())) - 1
  found = made.others(queries, passages[:, None])
  for query, passage, row in zip(queries, passages, found.tolist()):
    others = known[int(query)] - {int(passage)}
    assert {*row} - {int(passage)} == others
    assert row.count(int(passage)) == made.count - len(others)
  one_each = np.arange(5, dtype=np.uint64)
  assert Positives(one_each, one_each).count == 0


def test_of_many_those_of_the_batch_come_first(monkeypatch):
  monkeypatch.setattr(order_lib, 'MAX_POSITIVES', 4)
  queries, passages = pairs(300, 3, 60)
  made, known = Positives(queries, passages), sets(queries, passages)
  assert made.count == 4
  batch = np.stack([passages[:5], passages[5:10]], axis=1)
  for query, row, own in zip(queries, made.others(queries[:5], batch), batch):
    here = known[int(query)] & {*batch.ravel().tolist()} - {int(own[0])}
    assert {*row.tolist()} >= {*sorted(here)[:4]}
    assert {*row.tolist()} <= known[int(query)]


def test_batches_have_them():
  cache = text_reading.random_cache(96)
  cache.query_fingerprints, cache.passage_fingerprints = pairs(96, 30, 40)
  data = Batches([cache], 32, 0, 16, 64, 2)
  known = sets(cache.query_fingerprints, cache.passage_fingerprints)
  batch = data(1)
  several = data.positives.count
  assert batch['positive_ids'].shape == (32, several, 2) and several > 0
  ids = [
      from_uint32_pairs(batch[f'{name}_ids']).tolist()
      for name in ('query', 'passage', 'positive')
  ]
  for query, passage, row in zip(*ids):
    assert {*row, passage} == known[query]
    assert len(known[query]) <= order_lib.MAX_POSITIVES
