"""Codes lose no more than those that faiss trains on the same vectors."""

import compression_vectors
import faiss
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import kmeans, linear

pytestmark = pytest.mark.slow
COUNT, DIM, PARTS, BITS = 10_000, 64, 8, 5


@pytest.fixture(scope='module')
def rows():
  return compression_vectors.embeddings(COUNT, DIM)


def product_of_faiss(rows, seed=1234):
  """A product quantiser of all vectors, as ours is, and not of a sample."""
  quantizer = faiss.ProductQuantizer(DIM, PARTS, BITS)
  quantizer.cp.seed = seed
  quantizer.cp.max_points_per_centroid = COUNT
  quantizer.train(rows)
  centroids = faiss.vector_to_array(quantizer.centroids)
  return quantizer, centroids.reshape(PARTS, 2**BITS, -1)


def test_kmeans_is_as_near(rows):
  theirs, ours = [], []
  for seed in (1234, 1235):
    quantizer, centroids = product_of_faiss(rows, seed)
    theirs.append(compression_vectors.distortion(rows, centroids))
    parts = rows.reshape(COUNT, PARTS, -1)
    found = kmeans.fit(parts, 2**BITS, seed, quantizer.cp.niter)
    ours.append(compression_vectors.distortion(rows, found))
  assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.01)


def test_opq_is_not_worse(rows):
  theirs = faiss.OPQMatrix(DIM, PARTS)
  theirs.niter, theirs.max_train_points = 10, COUNT
  inside = faiss.ProductQuantizer(DIM, PARTS, BITS)
  theirs.pq = inside
  theirs.train(rows)
  rotated = theirs.apply(rows)
  _, centroids = product_of_faiss(rotated)
  expected = compression_vectors.distortion(rotated, centroids)
  rotation, found = linear.opq(rows, PARTS, BITS, 0, 10)
  ours = compression_vectors.distortion(rows @ rotation.T, found)
  assert ours < 1.01 * expected
