"""Rows split into lanes over the devices, for sums independent of devices.

A lane is a number of consecutive rows, which one device works on at a time.
Where lanes begin depends on the rows alone, and their results are added on the
host in their order, in float64. So the same rows give the same sums, bit for
bit, on one device and on eight, and more rows than the devices hold cost no
memory. Fits run on the devices of this host; each of several hosts comes to the
same result by itself.
"""

import collections
from collections.abc import Callable, Iterator
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.retrieval.search.search_programs import power_of_two

# Of a lane: with 256 centroids, what a device works on stays in its cache.
ROWS = 2048
_AXIS = 'devices'
# Blocks that may wait on the devices. A CPU works on several at a time.
_IN_FLIGHT = 8


def blocks(
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
  rows = min(ROWS, power_of_two(total))
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


def run(
    function: Callable[..., jax.Array], lanes: Any, *everywhere: np.ndarray
) -> Iterator[np.ndarray]:
  """Yields `function(lane, count, *everywhere)` for each lane, in order.

  Lanes come from `blocks`. The function is compiled once, and recognised by its
  identity.
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


def total(*args: Any) -> np.ndarray:
  """The sum of the results of `run`, float64."""
  found: Any = 0
  for part in run(*args):
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
