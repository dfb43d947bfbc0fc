"""PCA against NumPy's eigenvectors, and bilinear maps against brute force."""

import compression_vectors
import numpy as np
import pytest

from dualenc_jax.retrieval.compression import linear


def blocks(rows, size=300):
  yield from (rows[i : i + size] for i in range(0, len(rows), size))


@pytest.mark.parametrize('centred', [False, True])
def test_eigenvectors(centred):
  rows = compression_vectors.embeddings(1000, 24)
  matrix, of_queries = linear.pca(blocks(rows), 7, centred)
  assert matrix is of_queries
  assert matrix.shape == (7, 24) and matrix.dtype == np.float32
  wide = rows.astype(np.float64)
  moments = np.cov(wide.T) if centred else wide.T @ wide
  values, vectors = np.linalg.eigh(moments)
  expected = vectors[:, ::-1][:, :7].T
  signs = np.sign((matrix * expected).sum(axis=1))[:, None]
  np.testing.assert_allclose(matrix, signs * expected, atol=1e-6)
  np.testing.assert_allclose(matrix @ matrix.T, np.eye(7), atol=1e-6)


def test_blocks_do_not_matter():
  rows = compression_vectors.embeddings(1000, 12)
  # A shift that squares would lose half of their digits to.
  for centred, shift in ((False, 0), (True, 300)):
    one, *others = (
        linear.pca(blocks(rows + np.float32(shift), n), 4, centred)[0]
        for n in (1000, 999, 64, 1)
    )
    for other in others:
      np.testing.assert_allclose(one, other, atol=1e-6)


def score_error(queries, rows, of_rows, of_queries):
  found = (queries @ of_queries.T) @ (rows @ of_rows.T).T
  return ((queries @ rows.T - found) ** 2).sum()


def test_the_best_scores_for_these_queries():
  """All scores' own singular values say how well rank d can do."""
  rng = np.random.default_rng(0)
  rows = compression_vectors.embeddings(400, 10).astype(np.float64)
  queries = compression_vectors.embeddings(150, 10, 1).astype(np.float64)
  values = np.linalg.svd(queries @ rows.T, compute_uv=False)
  for dim in (1, 3, 9):
    of_rows, of_queries = linear.pca(blocks(rows), dim, queries=queries)
    assert of_rows.shape == of_queries.shape == (dim, 10)
    found = score_error(queries, rows, of_rows, of_queries)
    assert found == pytest.approx((values[dim:] ** 2).sum(), rel=1e-5)
    plain, _ = linear.pca(blocks(rows), dim)
    assert found < 0.99 * score_error(queries, rows, plain, plain)
    for _ in range(10):
      near = of_rows + 1e-2 * rng.standard_normal(of_rows.shape)
      assert found < score_error(queries, rows, near, of_queries)
  of_rows, of_queries = linear.pca([rows], 10, queries=queries)
  assert score_error(queries, rows, of_rows, of_queries) < 1e-6


def test_queries_and_passages_that_do_not_span_everything():
  rng = np.random.default_rng(0)
  rows = rng.standard_normal((300, 5)) @ rng.standard_normal((5, 12))
  queries = rng.standard_normal((3, 12))
  values = np.linalg.svd(queries @ rows.T, compute_uv=False)
  for dim, expected in ((2, values[2] ** 2), (8, 0)):
    maps = linear.pca([rows], dim, queries=queries)
    found = score_error(queries, rows, *maps)
    total = (values**2).sum()
    assert found / total == pytest.approx(expected / total, abs=1e-10)


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
