"""The rows of several shards, read as NumPy reads one array."""

import itertools

import numpy as np
import pytest

from dualenc_jax.retrieval.index import RowStore

ROWS = np.random.default_rng(0).normal(size=(23, 5)).astype(np.float32)


@pytest.fixture(params=[(4, 4, 4, 4, 4, 3), (1, 21, 1)])
def store(request, tmp_path):
  """A store over shards of these sizes, on disk."""
  parts = []
  for i, part in enumerate(np.split(ROWS, np.cumsum(request.param)[:-1])):
    np.save(tmp_path / f'{i}.npy', part)
    parts.append(np.load(tmp_path / f'{i}.npy', mmap_mode='r'))
  return RowStore(parts)


def test_slices(store):
  assert store.shape == (23, 5) and len(store) == 23 and store.ndim == 2
  np.testing.assert_array_equal(np.asarray(store), ROWS)
  np.testing.assert_array_equal(np.asarray(store, np.float64), ROWS)
  starts = (0, 1, 3, 4, 22, 23, 30, -2, None)
  stops = (0, 2, 4, 5, 12, 23, 50, -1, None)
  for part in map(slice, *zip(*itertools.product(starts, stops))):
    found = store[part]
    np.testing.assert_array_equal(found, ROWS[part])
    assert found.dtype == np.float32
  for part in (slice(None, None, 3), slice(20, 2, -2), slice(None, None, -1)):
    np.testing.assert_array_equal(store[part], ROWS[part])
  # A slice of one shard is no copy.
  assert np.shares_memory(store[22:23], store[-1:])
  assert isinstance(store[22:23], np.memmap)


@pytest.mark.parametrize('rows', [
    [22, 0, 4, 3, 4, 4, 21],
    [],
    [-1, -23, 3],
    [[1, 2, 22], [22, 2, 1]],
    -1,
    np.random.default_rng(1).integers(0, 23, 1000),
])
def test_rows_in_any_order(store, rows):
  expected = ROWS[np.asarray(rows, np.int64)]
  np.testing.assert_array_equal(store[rows], expected, strict=True)


@pytest.mark.parametrize('rows', [[23], [-24], 23, [0.5], [True], ['a']])
def test_what_names_no_rows(store, rows):
  with pytest.raises(IndexError, match='expected 0 to 22|whole numbers'):
    store[rows]
