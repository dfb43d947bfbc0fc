"""A query and its passage in one row and segment, in every layout."""

import numpy as np
import pytest
import text_reading
from text_reading import pairs_of

from dualenc_jax.data import Batches, Packed, Padded
from dualenc_jax.utils.errors import UserError

SIZE = 48
LAYOUTS = [Padded(), Packed()]
# Lengths of query and passage: short targets, and targets that are longer.
LENGTHS = [(16, 64), (64, 16)]


def make(layout, cells=1, lengths=LENGTHS[0], size=300, **options):
  cache = text_reading.random_cache(size, 0, *lengths)
  return Batches(
      [cache], SIZE, 0, *lengths, layout=layout, cells=cells,
      **(dict(joint_rows=True) | options),
  )


@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
@pytest.mark.parametrize('lengths', LENGTHS)
def test_both_are_in_the_same_row_and_segment(layout, lengths):
  """And each side holds the pairs that it holds apart."""
  for cells in (1, 4):
    data = make(layout, cells, lengths)
    apart = make(Padded(), 1, lengths, joint_rows=False)
    for step in range(2):
      batch = data(step)
      assert len(data.shapes) <= 4
      queries, passages = batch['queries'], batch['passages']
      np.testing.assert_array_equal(queries.texts, passages.texts)
      np.testing.assert_array_equal(queries.lengths > 0, passages.lengths > 0)
      if queries.places is not None:
        np.testing.assert_array_equal(queries.places, passages.places)
      assert sorted(pairs_of(batch)) == sorted(pairs_of(apart(step)))


@pytest.mark.parametrize('lengths', LENGTHS)
def test_packed_rows_are_few(lengths):
  """Half the tokens of padded rows, though lengths of a pair are unlike."""
  data, padded = make(Packed(), 1, lengths), make(Padded(), 1, lengths)
  tokens = {}
  for name, limit in zip(('queries', 'passages'), lengths):
    own, alone = data(0)[name].tokens, padded(0)[name].tokens
    assert own.shape[2] >= limit
    assert own.size < 0.7 * alone.size
    tokens[name] = own.size, alone.size
  packed, alone = map(sum, zip(*tokens.values()))
  assert packed < 0.55 * alone


def test_what_no_sample_has_shown_is_padded():
  """A batch of long texts in shapes that were chosen for short ones."""
  queries = [[7] * 3 + [1]] * 400 + [[8] * 15 + [1]] * 8
  passages = [[9] * 5 + [1]] * 400 + [[10] * 63 + [1]] * 8
  cache = text_reading.make_cache(queries, passages, None, 16, 64)
  data = Batches([cache], 8, 0, 16, 64, layout=Packed(), joint_rows=True)
  lengths = [np.full((1, 8), 16), np.full((1, 8), 64)]
  shapes, placements = data._place(lengths)
  assert [shape[:2] for shape in shapes] == [(8, 16), (8, 64)]
  assert all(placement.places is None for placement in placements)


def test_what_cannot_be_together():
  with pytest.raises(UserError, match='False for queries, passages with 1'):
    make(Packed(), num_negatives=1)
  with pytest.raises(UserError, match='False for queries with 0 hard'):
    make(Packed(), sides=('queries',))
