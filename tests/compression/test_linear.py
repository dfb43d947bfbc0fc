"""PCA against NumPy's eigenvectors, and OPQ."""

import compression_vectors
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import kmeans, linear

pytestmark = pytest.mark.devices(8)


def test_opq_is_better_than_codes_alone(caplog):
  rows = compression_vectors.embeddings(1500, 16)
  with caplog.at_level('INFO'):
    rotation, centroids = linear.opq(rows, 4, 4, 0)
  assert 'the rotation of opq:4 on 1,500 vectors of 16 dims' in caplog.text
  assert rotation.dtype == centroids.dtype == np.float32
  assert centroids.shape == (4, 16, 4)
  square = rotation.astype(np.float64) @ rotation.T
  np.testing.assert_allclose(square, np.eye(16), atol=1e-6)
  found = compression_vectors.distortion(rows @ rotation.T, centroids)

  def of_codes(rows):
    parts = kmeans.fit(rows.reshape(len(rows), 4, 4), 16, 0)
    return compression_vectors.distortion(rows, parts)

  turned = linear.balanced_rotation(rows - rows.mean(axis=0), 4)
  assert found < 0.99 * of_codes(rows @ turned.T)
  rng = np.random.default_rng(0)
  for other in (np.eye(16), np.linalg.qr(rng.standard_normal((16, 16)))[0]):
    assert found < 0.9 * of_codes(rows @ np.float32(other).T)


def test_balanced_parts():
  rng = np.random.default_rng(0)
  scales = 2.0 ** -np.arange(8)
  rows = rng.standard_normal((4000, 8)) * scales
  rotation = linear.balanced_rotation((rows - rows.mean(axis=0)), 4)
  variances = ((rows @ rotation.T) ** 2).mean(axis=0).reshape(4, 2)
  # Pairs of the greatest and the least: all products are alike.
  np.testing.assert_allclose(np.log2(variances.prod(axis=1)), -14, atol=0.3)


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
