"""Digests of arrays on devices, equal to those of `digests` on hosts.

Sums need no order: every device adds up its own part of an array, on any mesh,
and nothing but the sums travels.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.utils.tensor_files import digests
from dualenc_jax.utils.tensor_files.stacked_layers import layer_names


def of_trees(
    trees: Mapping[str, Any],
) -> tuple[dict[str, dict[str, str]], list[str]]:
  """Digests of all arrays of some trees, computed on their devices.

  It takes no memory to speak of. A program is compiled for each shape and
  sharding, once: one for all arrays would take as long to compile as they are
  many. The arrays may be donated when it returns.

  Args:
    trees: of arrays, by name; global arrays of any mesh, the same on all
      hosts, each of which must call this.

  Returns:
    Digests by the tree's name and by that of the array in it; where
    `scan_layers` has stacked layers, one for each. And the names, 'params:
    scale', of those that hold NaN or infinity.
  """
  names, arrays = [], []
  for tree, value in trees.items():
    names += [(tree, name) for name in leaf_paths(value)]
    arrays += jax.tree.leaves(value)
  mesh, specs = _placed(arrays)
  parts = [
      _of_one(name not in layer_names(name, array.shape), mesh, spec)(array)
      for (_, name), array, spec in zip(names, arrays, specs)
  ]
  found = np.zeros((0, 3), int)
  if parts:
    found = jax.device_get(_together(mesh)(parts))
  rows = iter(found.tolist())
  known: dict[str, dict[str, str]] = {name: {} for name in trees}
  bad = []
  for (tree, name), array in zip(names, arrays):
    for layer, shape in layer_names(name, array.shape).items():
      *sums, odd = next(rows)
      known[tree][layer] = digests.text(array.dtype, shape, sums)
      if odd:
        bad.append(f'{tree}: {layer}')
  return known, bad


@functools.lru_cache(256)
def _of_one(
    stacked: bool, mesh: Mesh | None, spec: PartitionSpec
) -> Callable[[jax.Array], jax.Array]:
  """The program of an array: -> uint32 [devices, layers, 3], part by part.

  A map over shards: left to itself, XLA gathers what it reduces.
  """

  def compute(array: jax.Array) -> jax.Array:
    return _sums(array, int(stacked), mesh, spec)[None]

  return jax.jit(_on_shards(compute, mesh, spec, _every_axis(mesh)))


@functools.lru_cache(16)
def _together(mesh: Mesh | None) -> Callable[[Sequence[jax.Array]], jax.Array]:
  """The program that adds up what `_of_one` returned: -> uint32 [all, 3]."""

  def compute(parts: Sequence[jax.Array]) -> jax.Array:
    rows = jnp.concatenate([*parts], axis=1)[0]
    return rows if mesh is None else lax.psum(rows, mesh.axis_names)

  return jax.jit(_on_shards(compute, mesh, _every_axis(mesh), PartitionSpec()))


def _on_shards(
    compute: Callable[..., Any], mesh: Mesh | None,
    of_input: PartitionSpec, of_output: PartitionSpec,
) -> Callable[..., Any]:
  if mesh is None:
    return compute
  return jax.shard_map(
      compute, mesh=mesh, in_specs=of_input, out_specs=of_output,
      check_vma=False,
  )


def _every_axis(mesh: Mesh | None) -> PartitionSpec:
  return PartitionSpec(mesh.axis_names if mesh is not None else None)


def _placed(arrays: Sequence[Any]) -> tuple[Any, list[PartitionSpec]]:
  """The mesh of arrays and where they are on it; what is not, is everywhere."""
  shardings = [getattr(array, 'sharding', None) for array in arrays]
  named = [s for s in shardings if isinstance(s, NamedSharding)]
  specs = [
      s.spec if isinstance(s, NamedSharding) else PartitionSpec()
      for s in shardings
  ]
  return (named[0].mesh if named else None), specs


def _sums(
    array: jax.Array, apart: int, mesh: Mesh | None, spec: PartitionSpec
) -> jax.Array:
  """Both sums and how many devices have a number that is not finite.

  One reduction of three: XLA makes one loop of it, which reads the array once
  and keeps nothing.

  Args:
    array: the part of it that is on this device.
    apart: 1 for sums of each of its layers, 0 for those of all.
    mesh: None where it is on one device.
    spec: of the array on the mesh.

  Returns:
    uint32 [layers, 3], or [1, 3]; zeros but on the first of the devices that
    have the same part.
  """
  axes = [_names(axis) for axis in (*spec, *[None] * (array.ndim - len(spec)))]
  odd = jnp.zeros(array.shape, jnp.uint32)
  if jnp.issubdtype(array.dtype, jnp.inexact):
    odd = (~jnp.isfinite(array)).astype(jnp.uint32)
  words = _words(array)
  axes += [()] * (words.ndim - array.ndim)
  odd = jnp.broadcast_to(
      odd.reshape(odd.shape + (1,) * (words.ndim - odd.ndim)), words.shape
  )
  first, second = (
      _index(words.shape, apart, by, mesh, axes) for by in digests.INDEX
  )
  x = words + first
  x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(digests.ROUNDS[0])
  x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(digests.ROUNDS[1])
  x = x ^ (x >> jnp.uint32(16))
  y = (x ^ second) * jnp.uint32(digests.SECOND)
  y = y ^ (y >> jnp.uint32(15))
  zero = jnp.uint32(0)
  found = lax.reduce(
      (x, y, odd),
      (zero, zero, zero),
      lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] | b[2]),
      tuple(range(apart, words.ndim)),
  )
  rows = jnp.stack(found, -1).reshape(-1, 3)
  if mesh is None:
    return rows
  used = {name for names in axes for name in names}
  for name in mesh.axis_names:
    if name not in used:
      rows *= (lax.axis_index(name) == 0).astype(jnp.uint32)
  if apart and axes[0]:
    whole = jnp.zeros((rows.shape[0] * _size(mesh, axes[0]), 3), jnp.uint32)
    start = lax.axis_index(axes[0]) * rows.shape[0]
    rows = lax.dynamic_update_slice_in_dim(whole, rows, start, 0)
  return rows


def _words(array: jax.Array) -> jax.Array:
  """uint32, of the array's shape, with more axes for the parts of elements."""
  if jnp.issubdtype(array.dtype, jnp.complexfloating):
    array = jnp.stack([array.real, array.imag], -1)
  size = array.dtype.itemsize
  if array.dtype == bool:
    return array.astype(jnp.uint32)
  if size < 4:
    as_whole = lax.bitcast_convert_type(array, f'uint{8 * size}')
    return as_whole.astype(jnp.uint32)
  return lax.bitcast_convert_type(array, jnp.uint32)


def _index(
    shape: Sequence[int], apart: int, by: int, mesh: Mesh | None,
    axes: Sequence[tuple[str, ...]],
) -> jax.Array:
  """Row-major indices in the whole, times `by`, modulo 2^32.

  Along `axes`, some of the mesh, each axis of the words of `shape` is split.
  """
  index, stride = jnp.zeros(shape, jnp.uint32), by
  for axis in reversed(range(apart, len(shape))):
    along = lax.broadcasted_iota(jnp.uint32, shape, axis)
    if axes[axis]:
      part = lax.axis_index(axes[axis]).astype(jnp.uint32)
      along += part * jnp.uint32(shape[axis])
    index += along * jnp.uint32(stride & digests.MASK)
    stride *= shape[axis] * _size(mesh, axes[axis])
  return index


def _names(axes: str | Sequence[str] | None) -> tuple[str, ...]:
  """Axes of a mesh, as one entry of a PartitionSpec has them."""
  return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _size(mesh: Mesh | None, axes: Sequence[str]) -> int:
  return math.prod(mesh.shape[name] for name in axes) if mesh else 1
