"""k-means of all parts of vectors at once, on one device.

The rules are those of faiss: the first centroids are rows drawn at random,
then a fixed number of Lloyd's iterations, and after each of them a cluster
that got no row takes half of the biggest one.

Rows go to the device block by block, and the results are added on the host in
float64, so more rows than a device holds cost no memory. Each of several hosts
comes to the same result by itself.

Shapes: n vectors, M parts of each, d dims of a part, K centroids of a part, R
rows of a block.
"""

import collections
from collections.abc import Callable, Iterator
import logging
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.retrieval.search.search_programs import power_of_two

# Vectors a centroid below which faiss warns.
FEW = 39
# The two halves of a cluster lie so many standard deviations apart, times two.
_APART = 1 / 1024
# Up to so many dims, scores are summed up in registers; beyond, a matrix
# product is faster although its results go through memory.
_FEW_DIMS = 16
# Centroids that are looked at together, so that a row is read once for them.
_TOGETHER = 8
# Rows of a block: with 256 centroids, the work of a device stays in its cache.
_BLOCK_ROWS = 2048
# Blocks that may wait. A CPU works on several at a time.
_IN_FLIGHT = 8
_LOG = logging.getLogger(__name__)


def fit(
    parts: np.ndarray, centroids: int, seed: int, iterations: int = 25,
    start: np.ndarray | None = None,
) -> np.ndarray:
  """Fits M independent codebooks to the M parts of vectors, by L2 distance.

  Args:
    parts: float32 [n, M, d].
    centroids: K, the size of a codebook.
    seed: seed of the rows that are the first centroids.
    iterations: the most iterations; fewer where no centroid moves any more.
    start: the first centroids instead, [M, K, d].

  Returns:
    The centroids, float32 [M, K, d].
  """
  count, m, _ = parts.shape
  if start is None:
    if count < FEW * centroids:
      _LOG.warning(
          '%d vectors for %d centroids: with fewer than %d vectors each,'
          ' centroids are noisy. Take fewer bits, or %d vectors or more.',
          count, centroids, FEW, FEW * centroids,
      )
    rng = np.random.default_rng(seed)
    start = np.stack([
        parts[rng.choice(count, centroids, replace=False), i] for i in range(m)
    ])
  apart = _APART * np.std(parts, axis=0, dtype=np.float64)
  # Without their mean, sums keep the digits in which vectors differ.
  middle: Any = np.mean(parts, axis=0, dtype=np.float64).astype(np.float32)
  blocks = list(split(parts, lambda x: (x - middle).transpose(2, 1, 0)))
  middle = middle[:, np.newaxis]
  found = np.asarray(start, np.float32) - middle
  for _ in range(iterations):
    sums = sum_blocks(_sums, blocks, found)
    counts = np.rint(sums[:, :, -1]).astype(np.int64)
    means = sums[:, :, :-1] / np.maximum(counts, 1)[:, :, np.newaxis]
    means = np.where(counts[:, :, np.newaxis] > 0, means, found)
    _fill_empty(means, counts, apart)
    last, found = found, means.astype(np.float32)
    if np.array_equal(last, found):
      break
  return found + middle


def nearest(parts: jax.Array, centroids: jax.Array) -> jax.Array:
  """Finds the nearest centroid of every part; the first among equals.

  It has the greatest 2 x.c - |c|^2. Both are taken relative to the middle of
  the centroids, as the difference would cancel far from zero. Parts are
  float32 [d, M, R], centroids float32 [M, K, d], and the result int32 [M, R].
  """
  middle = jnp.mean(centroids, axis=1)
  parts = parts - middle.T[:, :, jnp.newaxis]
  centroids = centroids - middle[:, jnp.newaxis]
  if len(parts) > _FEW_DIMS:
    return lax.map(_by_product, (parts.swapaxes(0, 1), centroids))
  return _in_registers(parts, centroids)


def _by_product(part_and_centroids: tuple[jax.Array, jax.Array]) -> jax.Array:
  """[d, R] of one part and [K, d] -> [R]."""
  part, centroids = part_and_centroids
  scores = lax.dot_general(
      2 * centroids, part, (((1,), (0,)), ((), ())),
      precision=lax.Precision.HIGHEST,
  )
  scores -= jnp.sum(centroids * centroids, axis=1)[:, jnp.newaxis]
  best = jnp.max(scores, axis=0, keepdims=True)
  rows = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
  # XLA does not vectorise argmax on a CPU.
  return jnp.min(jnp.where(scores == best, rows, len(scores) - 1), axis=0)


def _in_registers(parts: jax.Array, centroids: jax.Array) -> jax.Array:
  """Multiplies and compares in one program without an array of scores."""
  dims, count, rows = parts.shape
  total = centroids.shape[1]
  step = max(i for i in range(1, _TOGETHER + 1) if total % i == 0)
  half_norms = jnp.sum(centroids * centroids, axis=2).T[:, :, jnp.newaxis] / 2
  # [K, d, M, 1]
  centroids = centroids.transpose(1, 2, 0)[:, :, :, jnp.newaxis]

  def look(i, best):
    score, which = best
    first = i * step
    values = lax.dynamic_slice_in_dim(centroids, first, step)
    norms = lax.dynamic_slice_in_dim(half_norms, first, step)
    for k in range(step):
      own = -norms[k]
      for j in range(dims):
        own = own + values[k, j] * parts[j]
      better = own > score
      score = jnp.where(better, own, score)
      which = jnp.where(better, first + k, which)
    return score, which

  start = (
      jnp.full((count, rows), -jnp.inf, jnp.float32),
      jnp.zeros((count, rows), jnp.int32),
  )
  return lax.fori_loop(0, total // step, look, start)[1]


@jax.jit
def _sums(parts: jax.Array, used: jax.Array, centroids: jax.Array) -> jax.Array:
  """[M, K, d + 1]: sums of the rows nearest to each centroid, and counts."""
  _, count, rows = parts.shape
  which = nearest(parts, centroids)
  # Padding does not count.
  inside = lax.broadcasted_iota(jnp.int32, (1, count, rows), 2) < used
  values = jnp.concatenate([parts, jnp.ones((1, count, rows), jnp.float32)])
  values = jnp.where(inside, values, 0)
  part = lax.broadcasted_iota(jnp.int32, (count, rows), 0)
  sums = jnp.zeros((*centroids.shape[:2], len(values)), jnp.float32)
  return sums.at[part, which].add(
      values.transpose(1, 2, 0), mode='promise_in_bounds'
  )


def _fill_empty(
    means: np.ndarray, counts: np.ndarray, apart: np.ndarray
) -> None:
  """Gives empty clusters half of the biggest one, in place.

  The halves are moved by `apart` [M, d], in turns up and down, so that the next
  assignment tells them apart. Clusters have means [M, K, d] and counts of rows
  [M, K].
  """
  dims = means.shape[2]
  sign = np.where(np.arange(dims) % 2, -1.0, 1.0)
  # Each turn fills one empty cluster of every part.
  while True:
    empty, biggest = counts.argmin(axis=1), counts.argmax(axis=1)
    part = np.arange(len(counts))
    part = part[(counts.min(axis=1) == 0) & (counts.max(axis=1) > 1)]
    if not len(part):
      return
    empty, biggest = empty[part], biggest[part]
    middle, move = means[part, biggest], sign * apart[part]
    means[part, empty], means[part, biggest] = middle + move, middle - move
    size = counts[part, biggest]
    counts[part, empty] = size // 2
    counts[part, biggest] = size - size // 2


def split(
    vectors: Any, arrange: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[jax.Array, np.int32]]:
  """Yields an array [n, ...] or a store of rows in blocks on the device.

  The last is padded with zeros. `arrange` maps the rows of a block, float32
  [R, ...], to what is yielded, with the number of rows that count.
  """
  # Few sizes, for the compiler.
  size = min(_BLOCK_ROWS, power_of_two(len(vectors)))
  for start in range(0, len(vectors), size):
    rows = np.asarray(vectors[start : start + size], np.float32)
    missing = np.zeros((size - len(rows), *rows.shape[1:]), np.float32)
    block = arrange(np.concatenate([rows, missing]))
    yield jax.device_put(block, jax.local_devices()[0]), np.int32(len(rows))


def map_blocks(
    function: Callable[..., jax.Array], blocks: Any, *rest: np.ndarray
) -> Iterator[np.ndarray]:
  """Yields `function(block, count, *rest)` for each block of `split`."""
  device = jax.local_devices()[0]
  # The caller may have set the mesh of its own code.
  mesh = jax.sharding.Mesh(np.array([device]), ('device',))
  rest = jax.device_put(rest, device)
  waiting: collections.deque[jax.Array] = collections.deque()
  for block in blocks:
    with jax.set_mesh(mesh):
      waiting.append(function(*block, *rest))
    if len(waiting) > _IN_FLIGHT:
      yield np.asarray(waiting.popleft())
  yield from map(np.asarray, waiting)


def sum_blocks(*args: Any) -> np.ndarray:
  """The sum of the results of `map_blocks`, float64."""
  found: Any = 0
  for part in map_blocks(*args):
    found = found + part.astype(np.float64)
  return found
