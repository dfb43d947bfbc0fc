"""Vectors that are hard to rank in float32: Q = 16, N = 2,611, D = 32.

N is no multiple of any number of devices or of any block.
"""

from collections.abc import Callable

import numpy as np
from search_reference import unit

QUERIES, PASSAGES, DIM = 16, 2611, 32
Case = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


def random(rng):
  return _normal(rng, QUERIES), _normal(rng, PASSAGES)


def dense(rng):
  """Neighbours are nearer than float32 rounds, yet few are within bounds."""
  near = _normal(rng, 1) + 1e-4 * rng.normal(size=(PASSAGES, DIM))
  return _normal(rng, QUERIES), near.astype(np.float32)


def clustered(rng):
  """All scores of a query within the bounds of rounding."""
  center = rng.normal(size=DIM)

  def around(count):
    return unit(center + 1e-6 * rng.normal(size=(count, DIM)))

  return around(QUERIES), around(PASSAGES)


def pairs(rng):
  """Each passage about twice."""
  queries, passages = random(rng)
  return queries, passages[rng.integers(0, PASSAGES // 2, PASSAGES)]


def duplicated(rng):
  """More copies of each of 7 passages than search keeps."""
  queries, passages = random(rng)
  return queries, passages[rng.integers(0, 7, PASSAGES)]


def zeros(rng):
  """Zeros of both signs, orthogonal vectors, a query of nothing."""
  queries = np.eye(DIM, dtype=np.float32)[:QUERIES]
  queries[0], queries[1] = 0, -queries[1]
  passages = np.eye(DIM, dtype=np.float32)[rng.integers(0, DIM, PASSAGES)]
  passages[rng.random(passages.shape) < 0.5] *= -1
  return queries, passages


def norms_apart(rng):
  queries, passages = random(rng)
  sizes = 10.0 ** rng.uniform(-12, 12, (PASSAGES, 1))
  return queries, (passages * sizes).astype(np.float32)


def denormal(rng):
  """Numbers that devices may take for zero."""
  queries, passages = random(rng)
  return queries * np.float32(1e3), passages * np.float32(1e-39)


def huge(rng):
  queries, passages = random(rng)
  return queries * np.float32(1e18), passages * np.float32(1e18)


ALL: list[Case] = [
    random, dense, clustered, pairs, duplicated, zeros, norms_apart, denormal,
    huge,
]


def _normal(rng, count):
  return unit(rng.normal(size=(count, DIM)))
