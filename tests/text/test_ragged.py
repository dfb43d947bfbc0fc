"""Ragged rows: gathers against a plain loop."""

import numpy as np
import pytest

from dualenc_jax.text.ragged import Ragged


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


@pytest.mark.parametrize('length', [1, 7, 12, 40])
def test_padded_equals_a_plain_loop(length):
  rows = random_rows(0, 50, 12)
  ragged = Ragged.from_rows(rows, np.uint16)
  indices = np.random.default_rng(1).integers(0, 50, size=200)
  got = ragged.padded(indices, length)
  assert got.dtype == np.int32
  np.testing.assert_array_equal(got, padded_by_loop(rows, indices, length))


def test_padded_of_empty_rows_and_of_no_rows():
  ragged = Ragged.from_rows([[], [3], []], np.uint16)
  np.testing.assert_array_equal(
      ragged.padded(np.array([2, 1, 0]), 2), [[0, 0], [3, 0], [0, 0]]
  )
  assert ragged.padded(np.array([], np.int64), 5).shape == (0, 5)


def test_rows_lengths_and_len():
  rows = random_rows(2, 20, 9)
  ragged = Ragged.from_rows(rows, np.uint32)
  assert len(ragged) == 20
  assert ragged.lengths.tolist() == [len(row) for row in rows]
  assert [ragged.row(i).tolist() for i in range(20)] == rows


def test_texts_survive():
  texts = ['', 'plain', 'naïve 中 🙂', 'two\nlines']
  ragged = Ragged.from_texts(texts)
  assert [ragged.text(i) for i in range(4)] == texts
