"""Rows of several texts: masks and dropout by text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.models.layers import Dropout, Segments

LENGTHS = np.array([[3, 2, 4, 0], [9, 0, 0, 0], [1, 1, 1, 2], [0, 0, 0, 0]])
NUMBERS = np.array([[5, 0, 77, 1], [8, 9, 10, 11], [2, 3, 4, 6], [0, 0, 0, 0]])
L, F, RATE = 12, 7, 0.4


def segments():
  numbers = jnp.array(NUMBERS, jnp.uint32)
  return Segments.from_lengths(L, jnp.array(LENGTHS), numbers)


def each():
  """(row, first, length, number) of each text."""
  for row, (lengths, numbers) in enumerate(zip(LENGTHS, NUMBERS)):
    start = 0
    for length, number in zip(lengths.tolist(), numbers.tolist()):
      if length:
        yield row, start, length, number
      start += length


def test_slots_positions_and_members():
  slots, positions = np.full((4, L), 4), np.zeros((4, L), int)
  members = np.zeros((4, L, 4), np.float32)
  for row, lengths in enumerate(LENGTHS):
    start = 0
    for slot, length in enumerate(lengths):
      slots[row, start : start + length] = slot
      positions[row, start : start + length] = np.arange(length)
      members[row, start : start + length, slot] = 1
      start += length
  found, real = segments(), slots < 4
  np.testing.assert_array_equal(found.slots, slots)
  np.testing.assert_array_equal(found.positions[real], positions[real])
  np.testing.assert_array_equal(found.members(), members)


def test_attention_stays_within_a_text():
  want = np.zeros((4, 1, L, L), bool)
  for row, start, length, _ in each():
    inside = slice(start, start + length)
    want[row, 0, inside, inside] = True
  mask = np.asarray(segments().attention_mask())
  real = np.asarray(segments().slots) < 4
  # Padding may attend to nothing real; what it does otherwise is no matter.
  np.testing.assert_array_equal(mask & real[:, None, :, None], want)
  alone = Segments.from_lengths(L, jnp.array([[3], [12], [0]])).attention_mask()
  assert alone.shape == (3, 1, 1, L)
  np.testing.assert_array_equal(alone.sum(axis=-1)[:, 0, 0], [3, 12, 0])


@pytest.mark.parametrize('shared', [False, True])
def test_dropout_scales_what_it_keeps(shared):
  key, ones = {'dropout': jax.random.key(0)}, np.ones((4, L, F))
  out = Dropout(RATE, shared).apply({}, ones, segments(), rngs=key)
  kept = out != 0
  assert kept.any() and not kept.all()
  np.testing.assert_allclose(out[kept], 1 / (1 - RATE), rtol=1e-6)
  np.testing.assert_array_equal(Dropout(RATE, shared).apply({}, ones, None), 1)


@pytest.mark.parametrize('draw', ['keep_shared', 'keep_each'])
def test_a_text_has_the_mask_that_it_has_alone(draw):
  """In a row of its own, of whatever length, at the same number."""
  key = jax.random.key(3)
  together = np.broadcast_to(getattr(segments(), draw)(key, F, RATE), (4, L, F))
  for row, start, length, number in each():
    for padded in (length, 30):
      alone = Segments.from_lengths(
          padded, jnp.array([[length]]), jnp.array([[number]], jnp.uint32)
      )
      mask = getattr(alone, draw)(key, F, RATE)
      mask = np.broadcast_to(mask, (1, padded, F))[0, :length]
      np.testing.assert_array_equal(together[row, start : start + length], mask)


@pytest.mark.parametrize('draw', ['keep_shared', 'keep_each'])
def test_masks_are_as_frequent_as_said_and_differ_between_texts(draw):
  rows = 500
  lengths = jnp.full((rows, 3), 4)
  numbers = jnp.arange(3 * rows, dtype=jnp.uint32).reshape(rows, 3)
  keep = getattr(Segments.from_lengths(L, lengths, numbers), draw)(
      jax.random.key(0), F, RATE
  )
  keep = np.asarray(keep).reshape(rows * 3, 4, F)
  if draw == 'keep_shared':
    assert (keep == keep[:, :1]).all()
    keep = keep[:, :1]
  drawn = keep.reshape(rows * 3, -1).astype(np.float64)
  error = np.sqrt(RATE * (1 - RATE) / drawn.size)
  assert drawn.mean() == pytest.approx(1 - RATE, abs=5 * error)
  neighbours = np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]
  assert abs(neighbours) < 5 / np.sqrt(drawn.size)
  columns = np.corrcoef(drawn.T) - np.eye(drawn.shape[1])
  assert np.abs(columns).max() < 5 / np.sqrt(len(drawn))
