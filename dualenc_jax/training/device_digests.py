"""Digests of arrays on devices, equal to those of `digests` on hosts.

Sums need no order: every device adds up its own part of an array, on any mesh,
and only the sums travel.
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
from dualenc_jax.utils.tensor_files.tensors import layer_names


def digest_trees(
    trees: Mapping[str, Any],
) -> tuple[dict[str, dict[str, str]], list[str]]:
  """Returns digests of all arrays of some trees, computed on their devices.

  It takes little memory. A program is compiled once for each shape and
  sharding: one for all arrays would take as long to compile as they are many.
  The arrays may be donated when it returns.

  Args:
    trees: trees of arrays, by name: global arrays of any mesh, the same on all
      hosts, each of which must call this.

  Returns:
    Digests by the tree's name and by that of the array in it, one a layer where
    `scan_layers` has stacked layers; and the names, 'params: scale', of arrays
    that hold NaN or infinity.
  """
  names, arrays = [], []
  for tree, value in trees.items():
    names += [(tree, name) for name in leaf_paths(value)]
    arrays += jax.tree.leaves(value)
  mesh, specs = _mesh_and_specs(arrays)
  parts = [
      _part_sums(name not in layer_names(name, array.shape), mesh, spec)(array)
      for (_, name), array, spec in zip(names, arrays, specs)
  ]
  sums = np.zeros((0, 3), int)
  if parts:
    sums = jax.device_get(_total_sums(mesh)(parts))
  rows = iter(sums.tolist())
  known: dict[str, dict[str, str]] = {name: {} for name in trees}
  bad = []
  for (tree, name), array in zip(names, arrays):
    for layer, shape in layer_names(name, array.shape).items():
      *both, non_finite = next(rows)
      known[tree][layer] = digests.format_digest(array.dtype, shape, both)
      if non_finite:
        bad.append(f'{tree}: {layer}')
  return known, bad


@functools.lru_cache(256)
def _part_sums(
    stacked: bool, mesh: Mesh | None, spec: PartitionSpec
) -> Callable[[jax.Array], jax.Array]:
  """The program of an array: -> uint32 [devices, layers, 3], part by part.

  It is a map over shards: XLA by itself gathers what it reduces.
  """

  def compute(array: jax.Array) -> jax.Array:
    return _sums(array, int(stacked), mesh, spec)[None]

  return jax.jit(_on_shards(compute, mesh, spec, _all_axes(mesh)))


@functools.lru_cache(16)
def _total_sums(
    mesh: Mesh | None,
) -> Callable[[Sequence[jax.Array]], jax.Array]:
  """The program that adds up results of `_part_sums`: -> uint32 [all, 3]."""

  def compute(parts: Sequence[jax.Array]) -> jax.Array:
    rows = jnp.concatenate([*parts], axis=1)[0]
    return rows if mesh is None else lax.psum(rows, mesh.axis_names)

  return jax.jit(_on_shards(compute, mesh, _all_axes(mesh), PartitionSpec()))


def _on_shards(
    compute: Callable[..., Any], mesh: Mesh | None,
    in_spec: PartitionSpec, out_spec: PartitionSpec,
) -> Callable[..., Any]:
  if mesh is None:
    return compute
  return jax.shard_map(
      compute, mesh=mesh, in_specs=in_spec, out_specs=out_spec, check_vma=False
  )


def _all_axes(mesh: Mesh | None) -> PartitionSpec:
  return PartitionSpec(mesh.axis_names if mesh is not None else None)


def _mesh_and_specs(
    arrays: Sequence[Any],
) -> tuple[Any, list[PartitionSpec]]:
  """The mesh of arrays, and their specs; those without one are replicated."""
  shardings = [getattr(array, 'sharding', None) for array in arrays]
  named = [s for s in shardings if isinstance(s, NamedSharding)]
  specs = [
      s.spec if isinstance(s, NamedSharding) else PartitionSpec()
      for s in shardings
  ]
  return (named[0].mesh if named else None), specs


def _sums(
    array: jax.Array, first_axis: int, mesh: Mesh | None, spec: PartitionSpec
) -> jax.Array:
  """Both sums of a digest, and how many devices have a non-finite number.

  One reduction of three: XLA makes one loop of it, which reads the array once
  and keeps nothing.

  Args:
    array: the part of it that is on this device.
    first_axis: 1 for sums of each of its layers, 0 for those of all.
    mesh: None if the array is on one device.
    spec: of the array on the mesh.

  Returns:
    uint32 [layers, 3], or [1, 3]; zeros except on the first of the devices that
    have the same part.
  """
  axes = [_names(axis) for axis in (*spec, *[None] * (array.ndim - len(spec)))]
  non_finite = jnp.zeros(array.shape, jnp.uint32)
  if jnp.issubdtype(array.dtype, jnp.inexact):
    non_finite = (~jnp.isfinite(array)).astype(jnp.uint32)
  words = _words(array)
  axes += [()] * (words.ndim - array.ndim)
  more = (1,) * (words.ndim - array.ndim)
  non_finite = jnp.broadcast_to(
      non_finite.reshape(array.shape + more), words.shape
  )
  first, second = (
      _index(words.shape, first_axis, by, mesh, axes) for by in digests.INDEX
  )
  x = words + first
  x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(digests.ROUNDS[0])
  x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(digests.ROUNDS[1])
  x = x ^ (x >> jnp.uint32(16))
  y = (x ^ second) * jnp.uint32(digests.SECOND)
  y = y ^ (y >> jnp.uint32(15))
  zero = jnp.uint32(0)
  sums = lax.reduce(
      (x, y, non_finite),
      (zero, zero, zero),
      lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] | b[2]),
      tuple(range(first_axis, words.ndim)),
  )
  rows = jnp.stack(sums, -1).reshape(-1, 3)
  if mesh is None:
    return rows
  used = {name for names in axes for name in names}
  for name in mesh.axis_names:
    if name not in used:
      rows *= (lax.axis_index(name) == 0).astype(jnp.uint32)
  if first_axis and axes[0]:
    whole = jnp.zeros((rows.shape[0] * _size(mesh, axes[0]), 3), jnp.uint32)
    start = lax.axis_index(axes[0]) * rows.shape[0]
    rows = lax.dynamic_update_slice_in_dim(whole, rows, start, 0)
  return rows


def _words(array: jax.Array) -> jax.Array:
  """uint32 of the array's shape, with one more axis for long elements."""
  if array.dtype == bool:
    return array.astype(jnp.uint32)
  size = array.dtype.itemsize
  if size < 4:
    bits = lax.bitcast_convert_type(array, f'uint{8 * size}')
    return bits.astype(jnp.uint32)
  return lax.bitcast_convert_type(array, jnp.uint32)


def _index(
    shape: Sequence[int], first_axis: int, by: int, mesh: Mesh | None,
    axes: Sequence[tuple[str, ...]],
) -> jax.Array:
  """Row-major indices in the whole array, times `by`, modulo 2^32.

  `axes` are those of the mesh along which each axis of `shape` is split.
  """
  index, stride = jnp.zeros(shape, jnp.uint32), by
  for axis in reversed(range(first_axis, len(shape))):
    along = lax.broadcasted_iota(jnp.uint32, shape, axis)
    if axes[axis]:
      part = lax.axis_index(axes[axis]).astype(jnp.uint32)
      along += part * jnp.uint32(shape[axis])
    index += along * jnp.uint32(stride & digests.MASK)
    stride *= shape[axis] * _size(mesh, axes[axis])
  return index


def _names(axes: str | Sequence[str] | None) -> tuple[str, ...]:
  """The mesh axes of one entry of a PartitionSpec."""
  return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _size(mesh: Mesh | None, axes: Sequence[str]) -> int:
  return math.prod(mesh.shape[name] for name in axes) if mesh else 1
