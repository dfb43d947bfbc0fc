"""Maps: what is near stays near, and components are scikit-learn's."""

import numpy as np
import pytest
import sklearn.decomposition
import toy_set

from dualenc_jax.analysis import maps


def test_tsne_keeps_clusters_apart_and_is_the_same_twice():
  centres = 5 * np.eye(3, toy_set.DIM)
  cluster = np.repeat([0, 1, 2], 20)
  vectors = toy_set.unit_vectors(60) + centres[cluster]
  points = maps.tsne(vectors)
  assert points.shape == (60, 2)
  distances = np.linalg.norm(points[:, None] - points, axis=-1)
  np.fill_diagonal(distances, np.inf)
  np.testing.assert_array_equal(cluster[distances.argmin(axis=1)], cluster)
  np.testing.assert_array_equal(maps.tsne(vectors), points)


@pytest.mark.parametrize('count', [20, 200])
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_equal_vectors_are_one_point_without_variance(count, dtype):
  vector = toy_set.unit_vectors(1).astype(dtype) / 3
  vectors = np.repeat(vector, count, axis=0)
  np.testing.assert_array_equal(maps.tsne(vectors), np.zeros((count, 2)))
  components = maps.PrincipalComponents.fit(vectors)
  np.testing.assert_array_equal(components.shares, np.zeros(toy_set.DIM))
  np.testing.assert_array_equal(components.project(vectors), 0)


@pytest.mark.parametrize('noise', [1e-3, 1e-7, 1e-30, 1e-200])
def test_vectors_that_are_all_but_equal_have_a_map(noise):
  vectors = toy_set.unit_vectors(1).astype(np.float64) + np.zeros((100, 1))
  vectors[:, 0] = noise * np.arange(100)
  points = maps.tsne(vectors)
  assert points.shape == (100, 2) and np.isfinite(points).all()
  shares = maps.PrincipalComponents.fit(vectors).shares
  assert np.isfinite(shares).all()


def test_two_points_are_two_clusters():
  vectors = np.eye(2, toy_set.DIM)[np.arange(100) % 2]
  points = maps.tsne(vectors)
  even, odd = points[::2, 0], points[1::2, 0]
  assert even.max() < odd.min() or odd.max() < even.min()


def test_components_equal_those_of_scikit_learn():
  scales = np.linspace(3, 0.1, toy_set.DIM)
  vectors = toy_set.unit_vectors(50) * scales + 2
  components = maps.PrincipalComponents.fit(vectors)
  expected = sklearn.decomposition.PCA(svd_solver='full').fit(
      vectors.astype(np.float64)
  )
  np.testing.assert_allclose(
      components.shares, expected.explained_variance_ratio_, rtol=1e-6
  )
  signs = np.sign(np.sum(components.directions * expected.components_.T, 0))
  np.testing.assert_allclose(
      components.directions * signs, expected.components_.T, atol=1e-8
  )
  np.testing.assert_allclose(
      components.project(vectors, 3) * signs[:3],
      expected.transform(vectors.astype(np.float64))[:, :3],
      atol=1e-8,
  )


def test_the_sign_of_a_component_does_not_depend_on_chance():
  vectors = toy_set.unit_vectors(50)
  directions = maps.PrincipalComponents.fit(vectors).directions
  greatest = np.abs(directions).argmax(axis=0)
  assert (directions[greatest, np.arange(toy_set.DIM)] > 0).all()


def test_fewer_vectors_than_dimensions():
  components = maps.PrincipalComponents.fit(toy_set.unit_vectors(5))
  np.testing.assert_allclose(components.shares[4:], 0, atol=1e-12)
  np.testing.assert_allclose(components.shares.sum(), 1)
