"""Vectors as models make them: clustered, correlated, of length one."""

import numpy as np

from dualenc_jax.retrieval.compression import product


def embeddings(count: int, dim: int, seed: int = 0) -> np.ndarray:
  """float32 [count, dim]."""
  rng = np.random.default_rng(seed)
  centres = rng.standard_normal((50, dim))
  rows = centres[rng.integers(50, size=count)]
  rows = rows + rng.standard_normal((count, dim))
  spectrum = np.arange(1, dim + 1) ** -0.5
  rows = rows @ (rng.standard_normal((dim, dim)) * spectrum[:, None])
  rows = rows + rng.standard_normal(dim)
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows.astype(np.float32)


def distortion(vectors, centroids) -> float:
  """The mean squared distance of vectors from what their codes stand for."""
  found = product.decode(product.encode(vectors, centroids), centroids)
  return np.square(vectors.astype(np.float64) - found).sum(axis=1).mean()
