"""PCA against NumPy's eigenvectors, and random rotations."""

import compression_vectors
import numpy as np

from dualenc_jax.retrieval.compression import linear


def blocks(rows, size=300):
  yield from (rows[i : i + size] for i in range(0, len(rows), size))


def test_eigenvectors():
  rows = compression_vectors.embeddings(1000, 24)
  matrix = linear.pca(blocks(rows), 7)
  assert matrix.shape == (7, 24) and matrix.dtype == np.float32
  wide = rows.astype(np.float64)
  expected = np.linalg.eigh(wide.T @ wide)[1][:, ::-1][:, :7].T
  signs = np.sign((matrix * expected).sum(axis=1))[:, None]
  np.testing.assert_allclose(matrix, signs * expected, atol=1e-6)
  np.testing.assert_allclose(matrix @ matrix.T, np.eye(7), atol=1e-6)


def test_blocks_do_not_matter():
  rows = compression_vectors.embeddings(1000, 12)
  one, *others = (
      linear.pca(blocks(rows, n), 4) for n in (1000, 999, 64, 1)
  )
  for other in others:
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_rotation():
  rotation = linear.random_rotation(50, 3)
  assert rotation.dtype == np.float32
  wide = rotation.astype(np.float64)
  np.testing.assert_allclose(wide @ wide.T, np.eye(50), atol=1e-6)
  np.testing.assert_array_equal(rotation, linear.random_rotation(50, 3))
  assert not np.allclose(rotation, linear.random_rotation(50, 4), atol=0.1)
  # Without the signs LAPACK's diagonal would be mostly negative.
  entries = [linear.random_rotation(4, seed)[0, 0] for seed in range(400)]
  assert abs(np.mean(entries)) < 4 * 0.5 / 20
