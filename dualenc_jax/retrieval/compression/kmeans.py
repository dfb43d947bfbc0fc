"""k-means of all parts of vectors at once, on the devices.

The rules are those of faiss: the first centroids are rows drawn at random,
then a fixed number of Lloyd's iterations, and after each of them a cluster
that got no row takes half of the biggest one.

Rows are split into lanes: a lane is a number of consecutive rows, which one
device works on at a time. Where lanes begin depends on the rows alone, and
their results are added on the host in their order, in float64. So the same rows
give the same sums, bit for bit, on one device and on eight, and more rows than
the devices hold cost no memory. Fits run on the devices of this host; each of
several hosts comes to the same result by itself.

Shapes: n vectors, M parts of each, d dims of a part, K centroids of a part, R
rows of a lane.
"""

import collections
from collections.abc import Callable, Iterator
import functools
import logging
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
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
# Rows of a lane: with 256 centroids, the work of a device stays in its cache.
_LANE_ROWS = 2048
# Lanes of a device that may wait. A CPU works on several at a time.
_IN_FLIGHT = 8
_AXIS = 'devices'
_LOG = logging.getLogger(__name__)


def fit(
    parts: np.ndarray, centroids: int, seed: int, iterations: int = 25,
    start: np.ndarray | None = None,
) -> np.ndarray:
  """Fits M independent codebooks to the M parts of vectors, by L2 distance.

  The result is the same, bit for bit, on any number of devices.

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
  blocks = list(split_lanes(parts, lambda x: (x - middle).transpose(2, 1, 0)))
  middle = middle[:, np.newaxis]
  found = np.asarray(start, np.float32) - middle
  for _ in range(iterations):
    sums = sum_lanes(_sums, blocks, found)
    counts = np.rint(sums[:, :, -1]).astype(np.int64)
    means = sums[:, :, :-1] / np.maximum(counts, 1)[:, :, np.newaxis]
    means = np.where(counts[:, :, np.newaxis] > 0, means, found)
    _split(means, counts, apart)
    last, found = found, means.astype(np.float32)
    if np.array_equal(last, found):
      break
  return found + middle


def nearest(parts: jax.Array, centroids: jax.Array) -> jax.Array:
  """Finds the nearest centroid of every part; the first among equals.

  It has the greatest 2 x.c - |c|^2. Both are taken relative to the middle of
  the centroids, as the difference would cancel far from zero.

  Args:
    parts: float32 [d, M, R].
    centroids: float32 [M, K, d].

  Returns:
    Numbers of centroids, int32 [M, R].
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


def _split(means: np.ndarray, counts: np.ndarray, apart: np.ndarray) -> None:
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


def split_lanes(
    vectors: Any, arrange: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[jax.Array, jax.Array]]:
  """Yields the rows as lanes, one per device, the last padded with zeros.

  Args:
    vectors: an array [n, ...] or a store of rows.
    arrange: maps the rows of a lane, float32 [R, ...], to a device's input.

  Yields:
    Lanes [devices, ...], and int32 [devices], how many rows of each count.
  """
  mesh = _mesh()
  split = NamedSharding(mesh, PartitionSpec(_AXIS))
  total, devices = len(vectors), mesh.size
  # Few sizes, for the compiler.
  rows = min(_LANE_ROWS, power_of_two(total))
  for start in range(0, total, rows * devices):
    lanes, counts = [], []
    for first in range(start, start + rows * devices, rows):
      part = np.asarray(vectors[min(first, total) : first + rows], np.float32)
      counts.append(len(part))
      missing = np.zeros((rows - len(part), *part.shape[1:]), np.float32)
      lanes.append(arrange(np.concatenate([part, missing])))
    yield tuple(
        jax.device_put(x, split)
        for x in (np.stack(lanes), np.array(counts, np.int32))
    )


def map_lanes(
    function: Callable[..., jax.Array], lanes: Any, *everywhere: np.ndarray
) -> Iterator[np.ndarray]:
  """Yields `function(lane, count, *everywhere)` for each lane, in order.

  Lanes come from `split_lanes`. The function is compiled once, and recognised
  by its identity.
  """

  def used(results, counts):
    counts = np.asarray(counts)
    return (x for x, count in zip(np.asarray(results), counts) if count)

  mesh = _mesh()
  program = _compiled(function, mesh)
  with jax.set_mesh(mesh):
    everywhere = jax.device_put(
        everywhere, NamedSharding(mesh, PartitionSpec())
    )
  waiting: collections.deque[Any] = collections.deque()
  for block in lanes:
    with jax.set_mesh(mesh):
      waiting.append((program(*block, *everywhere), block[1]))
    if len(waiting) > _IN_FLIGHT:
      yield from used(*waiting.popleft())
  while waiting:
    yield from used(*waiting.popleft())


def sum_lanes(*args: Any) -> np.ndarray:
  """The sum of the results of `map_lanes`, float64."""
  found: Any = 0
  for part in map_lanes(*args):
    found = found + part.astype(np.float64)
  return found


def _mesh() -> jax.sharding.Mesh:
  """The devices of this host, each of which takes a lane at a time."""
  return jax.sharding.Mesh(np.array(jax.local_devices()), (_AXIS,))


@functools.lru_cache(maxsize=32)
def _compiled(function: Callable[..., jax.Array], mesh: jax.sharding.Mesh):
  """The function of one lane on every device."""
  split, everywhere = PartitionSpec(_AXIS), PartitionSpec()

  def on_device(lanes, counts, *rest):
    return function(lanes[0], counts[0], *rest)[jnp.newaxis]

  def program(lanes, counts, *rest):
    return jax.shard_map(
        on_device, mesh=mesh,
        in_specs=(split, split, *(everywhere for _ in rest)), out_specs=split,
        check_vma=False,
    )(lanes, counts, *rest)

  return jax.jit(program)
