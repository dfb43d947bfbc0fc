"""k-means against Lloyd's iterations in NumPy."""

import compression_vectors
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import kmeans, product

pytestmark = pytest.mark.devices(8)


def lloyd(rows, centroids, iterations):
  """Of one part, in float64."""
  rows, centroids = rows.astype(np.float64), centroids.astype(np.float64)
  for _ in range(iterations):
    squares = (rows[:, None] - centroids) ** 2
    which = squares.sum(axis=2).argmin(axis=1)
    for k in range(len(centroids)):
      assert (which == k).any()
      centroids[k] = rows[which == k].mean(axis=0)
  return centroids


# Parts of few dims and of many go different ways. Far from zero, what distances
# differ by is not lost beside what vectors share; float32 has steps of 6e-5.
@pytest.mark.parametrize('m, dims, count, shift, atol', [
    (3, 5, 5000, 0, 1e-6), (2, 24, 5000, 0, 1e-6), (1, 1, 500, 0, 1e-6),
    (1, 8, 3000, 1000, 6.2e-5),
])
def test_lloyd(m, dims, count, shift, atol):
  rows = compression_vectors.embeddings(count, m * dims + 1)[:, :-1]
  rows = rows + np.float32(shift)
  parts = rows.reshape(count, m, dims)
  start = parts[7 : 7 + 12].swapaxes(0, 1)
  found = kmeans.fit(parts, 12, 0, iterations=4, start=start)
  assert found.shape == (m, 12, dims) and found.dtype == np.float32
  for i in range(m):
    expected = lloyd(parts[:, i], start[i], 4)
    np.testing.assert_allclose(found[i], expected, rtol=0, atol=atol)


def test_starts_from_different_rows():
  rows = np.arange(40, dtype=np.float32).reshape(20, 2, 1)
  found = kmeans.fit(rows, 20, 0, iterations=0)
  np.testing.assert_array_equal(np.sort(found[:, :, 0]), rows[:, :, 0].T)


def test_padding_is_no_row():
  """A centroid at zero, where rows that fill up a block are, moves away."""
  rows = 1 + compression_vectors.embeddings(2049, 4)[:, None]
  start = np.stack([np.zeros(4), rows.mean(axis=(0, 1))])[None]
  found = kmeans.fit(rows, 2, 0, start=start.astype(np.float32))
  assert found.min() > 0.3


def test_empty_clusters_take_half_of_the_biggest():
  rng = np.random.default_rng(0)
  rows = rng.standard_normal((900, 1, 2)).astype(np.float32)
  rows[:800] += 50
  # Nothing is near the last three.
  start = np.array([[[50, 50], [0, 0], [-99, 0], [0, -99], [-99, 99]]])
  found = kmeans.fit(rows, 5, 0, start=start.astype(np.float32))
  codes = product.encode(rows[:, 0], found)[:, 0]
  sizes = np.bincount(codes, minlength=5)
  # All of them are now of the 800, whose halves were the biggest each time.
  assert sizes[1] == 100 and sizes.min() > 50
