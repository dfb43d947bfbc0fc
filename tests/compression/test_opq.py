"""OPQ against faiss, and what it promises of its rotation."""

import compression_vectors
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import kmeans, linear, opq

pytestmark = pytest.mark.devices(8)


def test_better_than_codes_alone():
  rows = compression_vectors.embeddings(1500, 16)
  rotation, centroids = opq.fit(rows, 4, 4, 0)
  assert rotation.dtype == centroids.dtype == np.float32
  assert centroids.shape == (4, 16, 4)
  square = rotation.astype(np.float64) @ rotation.T
  np.testing.assert_allclose(square, np.eye(16), atol=1e-6)
  found = compression_vectors.distortion(rows @ rotation.T, centroids)

  def of_codes(rows):
    parts = kmeans.fit(rows.reshape(len(rows), 4, 4), 16, 0)
    return compression_vectors.distortion(rows, parts)

  turned = opq.balanced_rotation(rows - rows.mean(axis=0), 4)
  assert found < 0.99 * of_codes(rows @ turned.T)
  for other in (np.eye(16), linear.random_rotation(16, 0)):
    assert found < 0.9 * of_codes(rows @ np.float32(other).T)


def test_devices_do_not_matter():
  rows = compression_vectors.embeddings(5000, 16)
  one, eight = compression_vectors.on_one_and_eight(
      lambda: opq.fit(rows, 4, 4, 0, 2)
  )
  for own, other in zip(one, eight):
    np.testing.assert_array_equal(own, other)


def test_balanced_parts():
  rng = np.random.default_rng(0)
  scales = 2.0 ** -np.arange(8)
  rows = rng.standard_normal((4000, 8)) * scales
  rotation = opq.balanced_rotation((rows - rows.mean(axis=0)), 4)
  variances = ((rows @ rotation.T) ** 2).mean(axis=0).reshape(4, 2)
  # Pairs of the greatest and the least: all products are alike.
  np.testing.assert_allclose(np.log2(variances.prod(axis=1)), -14, atol=0.3)
