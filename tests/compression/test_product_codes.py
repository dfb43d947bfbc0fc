"""Codes of parts against distances in NumPy, and against faiss."""

import compression_vectors
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import product

pytestmark = pytest.mark.devices(8)


def codebooks(m, centroids, dims, seed=1):
  rows = compression_vectors.embeddings(centroids, m * dims, seed)
  return rows.reshape(centroids, m, dims).swapaxes(0, 1).copy()


# With centroids that no small number divides, and one.
@pytest.mark.parametrize(
    'm, centroids, dims, count',
    [(4, 256, 4, 2049), (2, 61, 20, 700), (1, 1, 3, 1), (3, 97, 2, 2049)],
)
def test_nearest(m, centroids, dims, count):
  rows = compression_vectors.embeddings(count, m * dims)
  books = codebooks(m, centroids, dims)
  codes = product.encode(rows, books)
  assert codes.shape == (count, m) and codes.dtype == np.uint8
  parts = rows.reshape(count, m, 1, dims).astype(np.float64)
  squares = ((parts - books) ** 2).sum(axis=3)
  own = np.take_along_axis(squares, codes[:, :, None], axis=2)[:, :, 0]
  np.testing.assert_allclose(own, squares.min(axis=2), atol=1e-6)
  # But for rounding it is the nearest one itself.
  assert (codes == squares.argmin(axis=2)).mean() > 0.999
  error = compression_vectors.distortion(rows, books)
  assert error == pytest.approx(squares.min(axis=2).sum(axis=1).mean(), 1e-5)


@pytest.mark.parametrize('dims', [4, 20])
def test_the_first_among_equals(dims):
  rows = compression_vectors.embeddings(500, 2 * dims)
  books = codebooks(2, 32, dims)
  books[:, 16:] = books[:, :16][:, ::-1]
  assert product.encode(rows, books).max() < 16


def test_codes_do_not_depend_on_blocks():
  rows = compression_vectors.embeddings(4500, 12)
  books = codebooks(3, 64, 4)
  parts = [product.encode(x, books) for x in (rows[:3], rows[3:], rows[:0])]
  np.testing.assert_array_equal(
      np.concatenate(parts), product.encode(rows, books)
  )
