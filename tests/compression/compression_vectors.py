"""Vectors as models make them: clustered, correlated, of length one."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

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


def on_one_and_eight(function: Callable[[], Any]) -> tuple[Any, Any]:
  """What a function returns on one device and on eight."""
  assert len(jax.local_devices()) == 8
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, 'local_devices', lambda: jax.devices()[:1])
    one = function()
  return one, function()
