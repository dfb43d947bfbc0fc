"""Batches: pure in seed and step, complete in an epoch, K hard negatives."""

import numpy as np
import pytest
import text_reading
from text_reading import pairs_of

from dualenc_jax.data import Packed, Padded
from dualenc_jax.data.batches import abstract_batch, Batches
from dualenc_jax.data.text.ragged import fingerprints, Ragged
from dualenc_jax.utils.errors import UserError

COUNTS = [0, 1, 2, 3, 5, 0, 7, 2, 1, 4, 3]
QUERIES = [[100 + i, 1] for i in range(len(COUNTS))]
PASSAGES = [[200 + i] * (1 + i % 4) + [1] for i in range(len(COUNTS))]
NEGATIVES = [
    [[300 + 10 * i + k, 7, 1] for k in range(count)]
    for i, count in enumerate(COUNTS)
]
LAYOUTS = [Padded(), Packed()]


def batches(**options):
  cache = text_reading.make_cache(QUERIES, PASSAGES, NEGATIVES)
  defaults = dict(batch_size=3, seed=0, query_length=4, passage_length=6)
  return Batches([cache], **(defaults | options))


def leaves(batch):
  """All arrays by name."""
  out = {}
  for name, value in batch.items():
    if name in ('queries', 'passages'):
      arrays = value._asdict().items()
      out |= {f'{name}/{k}': v for k, v in arrays if v is not None}
    else:
      out[name] = value
  return out


def test_shapes_dtypes_and_content():
  batch = batches(num_negatives=2)(0)
  # Three pairs in one cell, each text a row.
  expected = {
      'queries/tokens': ((1, 3, 4), np.int32),
      'queries/lengths': ((1, 3, 1), np.int32),
      'queries/texts': ((1, 3, 1), np.int32),
      'passages/tokens': ((1, 9, 6), np.int32),
      'passages/lengths': ((1, 9, 1), np.int32),
      'passages/texts': ((1, 9, 1), np.int32),
      'numbers': ((3,), np.uint32),
      'query_ids': ((3, 2), np.uint32),
      'passage_ids': ((3, 2), np.uint32),
      'negative_ids': ((3, 2, 2), np.uint32),
      'negative_valid': ((3, 2), np.bool_),
  }
  assert {k: (v.shape, v.dtype) for k, v in leaves(batch).items()} == expected
  without = {name for name in batch if 'negative' not in name}
  assert batches()(0).keys() == without
  for row, (query, passage, _, number) in enumerate(pairs_of(batch, 2)):
    i = query[0] - 100
    assert query == QUERIES[i] and passage == PASSAGES[i] and number == row
    low, high = map(int, batch['passage_ids'][row])
    (own,) = fingerprints(Ragged.from_rows([PASSAGES[i]], np.uint16)).tolist()
    assert low + (high << 32) == own


@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
@pytest.mark.parametrize('cells, k', [(1, 3), (4, 0)])
def test_the_abstract_batch_is_like_the_usual_one(layout, cells, k):
  cache = text_reading.random_cache(200)
  data = Batches([cache], 32, 0, 16, 64, k, layout=layout, cells=cells)
  several = data.positives.count
  abstract = abstract_batch(
      data.shapes[0], 32, cells, k, np.zeros, num_positives=several
  )
  found = [
      {k: (v.shape, v.dtype) for k, v in leaves(batch).items()}
      for batch in [abstract, *map(data, range(6))]
  ]
  assert found.count(found[0]) >= 5


@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
def test_a_batch_is_a_pure_function_of_seed_and_step(layout):
  there, back = (
      {step: data(step) for step in steps}
      for data, steps in (
          (batches(num_negatives=2, layout=layout), range(8)),
          (batches(num_negatives=2, layout=layout), range(7, -1, -1)),
      )
  )
  for step, batch in there.items():
    a, b = leaves(batch), leaves(back[step])
    assert a.keys() == b.keys()
    for name, value in a.items():
      np.testing.assert_array_equal(value, b[name], err_msg=name)


@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
@pytest.mark.parametrize('k', [0, 3])
def test_every_layout_has_the_pairs_of_the_padded_one(layout, k):
  """Also in cells, and for 1, 2 and 4 hosts, which feed slices of them."""
  cache = text_reading.random_cache(300)

  def make(layout, cells):
    return Batches([cache], 48, 0, 16, 64, k, layout=layout, cells=cells)

  padded = make(Padded(), 1)
  for cells, hosts in [(1, 1), (4, 1), (4, 2), (4, 4), (16, 4)]:
    data = make(layout, cells)
    for step in range(2):
      want = sorted(pairs_of(padded(step), k))
      got = []
      for host in np.split(np.arange(cells), hosts):
        batch = data(step, host)
        got += pairs_of(batch, k)
        valid = [[bool(n) for n in pair[2]] for pair in pairs_of(batch, k)]
        if k:
          assert batch['negative_valid'].tolist() == valid
      assert sorted(got) == want


@pytest.mark.parametrize(
    'k, layout', [(1, Padded()), (2, Packed()), (3, Packed()), (8, Padded())]
)
def test_negatives_rotate_by_epoch_and_fall_short_to_none(k, layout):
  data = batches(batch_size=11, num_negatives=k, layout=layout)
  for epoch in range(5):
    batch = data(epoch)
    for row, (query, _, negatives, _) in enumerate(pairs_of(batch, k)):
      i = query[0] - 100
      for number in range(k):
        low, high = map(int, batch['negative_ids'][row, number])
        valid = batch['negative_valid'][row, number]
        if number >= COUNTS[i]:
          assert negatives[number] == [] and low == high == 0 and not valid
          continue
        chosen = NEGATIVES[i][(epoch * k + number) % COUNTS[i]]
        assert negatives[number] == chosen and valid
        (own,) = fingerprints(Ragged.from_rows([chosen], np.uint16)).tolist()
        assert low + (high << 32) == own


def test_what_a_split_has_too_few_of():
  with pytest.raises(UserError, match='is 12; expected 1 to 11, the ex'):
    batches(batch_size=12)
  cache = text_reading.make_cache(QUERIES, PASSAGES)
  with pytest.raises(UserError, match='NEGATIVES. is 1; .*no example of toy'):
    Batches([cache], 3, 0, 4, 6, num_negatives=1)
