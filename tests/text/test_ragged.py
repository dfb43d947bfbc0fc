"""Ragged rows against a plain loop, and fingerprints that may never change."""

import numpy as np
import pytest

from dualenc_jax.data.text import ragged as ragged_lib
from dualenc_jax.data.text.ragged import as_uint32_pairs, fingerprints, Ragged

MASK = (1 << 64) - 1
# Of the rows [1], [8774, 296, 1] and [].
PINNED = ['0x297aebda250168b4', '0x9ccd5b1028a33845', '0xa706dd2f4d197e6f']


def random_rows(seed, count, longest):
  rng = np.random.default_rng(seed)
  return [
      rng.integers(1, 60000, size=rng.integers(0, longest + 1)).tolist()
      for _ in range(count)
  ]


def padded_by_loop(rows, indices, length):
  out = np.zeros((len(indices), length), np.int32)
  for i, index in enumerate(indices):
    for j, value in enumerate(rows[index][:length]):
      out[i, j] = value
  return out


@pytest.mark.parametrize('length', [1, 7, 40])
def test_padded_equals_a_plain_loop(length):
  rows = random_rows(0, 50, 12)
  ragged = Ragged.from_rows(rows, np.uint16)
  indices = np.random.default_rng(1).integers(0, 50, size=200)
  got = ragged.padded(indices, length)
  assert got.dtype == np.int32
  np.testing.assert_array_equal(got, padded_by_loop(rows, indices, length))
  assert len(ragged) == 50
  assert ragged.lengths.tolist() == [len(row) for row in rows]
  assert [ragged.row(i).tolist() for i in range(50)] == rows
  assert ragged.padded(np.array([], np.int64), length).shape == (0, length)


def mix(x):
  """splitmix64's output function on Python's integers."""
  x = (x + 0x9E3779B97F4A7C15) & MASK
  x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
  x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
  return x ^ (x >> 31)


def fingerprint_by_loop(row):
  total = sum(mix(token | position << 32) for position, token in enumerate(row))
  return mix((total + mix(len(row))) & MASK)


@pytest.mark.parametrize('dtype, at_once', [(np.uint16, 2**18), (np.uint32, 4)])
def test_equals_plain_integers(monkeypatch, dtype, at_once):
  monkeypatch.setattr(ragged_lib, '_VALUES_AT_ONCE', at_once)
  rng = np.random.default_rng(0)
  rows = [rng.integers(0, 60000, size=n).tolist() for n in (0, 1, 5, 300, 0)]
  found = fingerprints(Ragged.from_rows(rows, dtype)).tolist()
  assert found == [fingerprint_by_loop(row) for row in rows]
  # Caches made by other versions and machines hold these.
  known = fingerprints(Ragged.from_rows([[1], [8774, 296, 1], []], dtype))
  assert [hex(x) for x in known.tolist()] == PINNED


def test_pairs_are_low_then_high():
  values = np.array([[0x0123456789ABCDEF, 1], [MASK, 1 << 32]], np.uint64)
  pairs = as_uint32_pairs(values)
  assert pairs.dtype == np.uint32 and pairs.shape == (2, 2, 2)
  assert pairs[0].tolist() == [[0x89ABCDEF, 0x01234567], [1, 0]]
  assert pairs[1].tolist() == [[0xFFFFFFFF, 0xFFFFFFFF], [0, 1]]
