"""OPQ against faiss, and what it promises of its rotation."""

import compression_vectors
import faiss
import numpy as np
import pytest

from dualenc_jax.compression import kmeans, linear, opq

pytestmark = pytest.mark.devices(8)


def distortion(rows, rotation, centroids):
  return compression_vectors.distortion(rows @ rotation.T, centroids)


def test_better_than_codes_alone():
  rows = compression_vectors.embeddings(1500, 16)
  rotation, centroids = opq.fit(rows, 4, 4, 0)
  assert rotation.dtype == centroids.dtype == np.float32
  assert centroids.shape == (4, 16, 4)
  square = rotation.astype(np.float64) @ rotation.T
  np.testing.assert_allclose(square, np.eye(16), atol=1e-6)
  found = distortion(rows, rotation, centroids)

  def of_codes(rows):
    parts = kmeans.fit(rows.reshape(len(rows), 4, 4), 16, 0)
    return compression_vectors.distortion(rows, parts)

  turned = opq.balanced_rotation(rows - rows.mean(axis=0), 4)
  assert found < 0.99 * of_codes(rows @ turned.T)
  for other in (np.eye(16), linear.random_rotation(16, 0)):
    assert found < 0.9 * of_codes(rows @ np.float32(other).T)


def test_each_turn_is_the_best_rotation_for_its_codes():
  """The closest of many, and of those right beside it, in float64."""
  rng = np.random.default_rng(0)
  rows, codes = rng.standard_normal((2, 200, 6))
  found = opq._nearest_rotation(codes.T @ rows).astype(np.float64)

  def error(rotation):
    return ((rows @ rotation.T - codes) ** 2).sum()

  for i in range(20):
    skew = rng.standard_normal((6, 6)) * 10.0 ** -(i % 4)
    near = np.linalg.solve(np.eye(6) + skew - skew.T, np.eye(6) - skew + skew.T)
    assert error(found) < error(found @ near)


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


def test_constant_dims():
  rows = compression_vectors.embeddings(1500, 16).copy()
  rows[:, 3:9] = 0.125
  rotation, centroids = opq.fit(rows, 4, 4, 0, 4)
  assert np.isfinite(centroids).all()
  square = rotation.astype(np.float64) @ rotation.T
  np.testing.assert_allclose(square, np.eye(16), atol=1e-6)
  parts = kmeans.fit(rows.reshape(1500, 4, 4), 16, 0)
  plain = compression_vectors.distortion(rows, parts)
  assert distortion(rows, rotation, centroids) < plain


@pytest.mark.slow
@pytest.mark.parametrize('dim, m', [(64, 8)])
def test_not_worse_than_faiss(dim, m):
  rows = compression_vectors.embeddings(20000, dim)
  theirs = faiss.OPQMatrix(dim, m)
  theirs.niter, theirs.max_train_points = 10, len(rows)
  inside = faiss.ProductQuantizer(dim, m, 5)
  theirs.pq = inside
  theirs.train(rows)
  rotated = theirs.apply(rows)
  quantizer = faiss.ProductQuantizer(dim, m, 5)
  quantizer.cp.max_points_per_centroid = len(rows)
  quantizer.train(rotated)
  centroids = faiss.vector_to_array(quantizer.centroids).reshape(m, 32, -1)
  expected = compression_vectors.distortion(rotated, centroids)
  assert distortion(rows, *opq.fit(rows, m, 5, 0, 10)) < 1.01 * expected
