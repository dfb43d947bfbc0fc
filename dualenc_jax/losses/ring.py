"""Log-partitions in memory that does not grow with the number of columns.

Every device holds its shard of rows. The shards of columns travel from device
to device by `ppermute`, and with them the running statistics of their columns;
at each stop all scores of the two shards are computed tile by tile and added to
the statistics of both. The backward pass sends the columns round again, and
their gradient with them. So the memory of a device is that of a few shards and
of one tile, and every score is computed twice, in however many directions it
counts.

A symmetric matrix needs half of the stops: what device d sees of shard d + k
is what d + k would see of shard d. If the number of devices is even, the two
opposite each other see the same, and each adds the half that is its own.

The next shard is sent for while the present one is in use, and the gradients
that belong to it arrive while its own share of them is made, so that a
scheduler can hide transfers behind products.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from dualenc_jax.losses import tiles
from dualenc_jax.losses.score_matrix import Matrix, NegativeMask, Partition

# An array of fewer bytes is not sent alone.
_SMALL = 2**17


@dataclasses.dataclass(frozen=True)
class Ring:
  """The ring of devices that shards travel round.

  Rows and columns are sharded over `axes` of the mesh; None is one device
  without a mesh. At most `tile` rows and columns are scored at once.
  """

  mesh: AbstractMesh | None
  axes: tuple[str, ...]
  tile: int
  totals: bool = False
  distils: bool = False

  @property
  def devices(self) -> int:
    return num_devices(self.mesh, self.axes)

  def on_shards(
      self, function: Callable[..., Any], check_vma: bool = True
  ) -> Callable[..., Any]:
    """Runs `function` on each device's rows; its last argument is shared."""
    if self.mesh is None:
      return function
    sharded = PartitionSpec(self.axes)

    def mapped(*args):
      specs = (sharded,) * (len(args) - 1) + (PartitionSpec(),)
      return jax.shard_map(
          function, mesh=self.mesh, in_specs=specs, out_specs=sharded,
          check_vma=check_vma,
      )(*args)

    return mapped

  def send(self, tree: Any, shift: int = 1) -> Any:
    """Sends every array to the device `shift` places further round the ring."""
    n = self.devices
    if n == 1:
      return tree
    places = [(i, (i + shift) % n) for i in range(n)]
    packs, unpack = _packed(tree)
    return unpack(jax.lax.ppermute(packs, self.axes, places))

  def place(self) -> jax.Array | int:
    """Returns the number of this device on the ring, within `on_shards`."""
    return 0 if self.devices == 1 else jax.lax.axis_index(self.axes)

  def gather(self, x: jax.Array) -> jax.Array:
    """Gathers small arrays: [a, ...] of each device -> [A, ...]."""
    if self.devices == 1:
      return x
    return jax.lax.all_gather(x, self.axes, tiled=True)

  def exchange(self, x: jax.Array) -> jax.Array:
    """Exchanges what each device has of all rows, [A, k] -> [a, n k].

    A device gets its own rows, with columns in the order of the n devices.
    """
    if self.devices == 1:
      return x
    return jax.lax.all_to_all(x, self.axes, 0, 1, tiled=True)

  def fetch(self, stored: jax.Array, numbers: jax.Array) -> jax.Array:
    """Fetches rows from all devices' shards; a number that none has gives 0.

    `stored` [m, ...] is the shard of this device, `numbers` int32 [b, ...] are
    the rows that it wants.
    """
    place = self.gather(numbers) - self.place() * len(stored)
    here = (place >= 0) & (place < len(stored))
    picked = jnp.take(stored, place, axis=0, mode='clip')
    here = here.reshape(*here.shape, *[1] * (picked.ndim - here.ndim))
    if not jnp.issubdtype(stored.dtype, jnp.floating):
      picked = picked.astype(jnp.int32)
    picked = jnp.where(here, picked, 0)
    if self.devices > 1:
      # One device has the row, the others have zeros.
      picked = jax.lax.psum_scatter(picked, self.axes, tiled=True)
    return picked.astype(stored.dtype)

  def hops(self, matrix: Matrix) -> int:
    """Counts the stops, the own shard aside, that serve rows and columns."""
    n = self.devices
    return len([k for k in range(1, n) if 2 * k < n or not matrix.symmetric])

  def halfway(self, matrix: Matrix) -> bool:
    """Returns whether there is a last stop, which serves the rows alone."""
    return matrix.symmetric and self.devices % 2 == 0


def _packed(tree: Any) -> tuple[list[jax.Array], Callable[..., Any]]:
  """Packs the small arrays of each dtype as one; returns the way back, too.

  A TPU sends few arrays at a time behind its products, and waits for the rest.
  """
  arrays, structure = jax.tree.flatten(tree)
  groups: dict[Any, list[int]] = {}
  for number, x in enumerate(arrays):
    kind = x.dtype if x.nbytes <= _SMALL else number
    groups.setdefault(kind, []).append(number)
  shapes = [x.shape for x in arrays]

  def unpack(packs):
    unpacked = [None] * len(shapes)
    for group, pack in zip(groups.values(), packs, strict=True):
      sizes = [math.prod(shapes[number]) for number in group]
      ends = list(itertools.accumulate(sizes))
      parts = jnp.split(pack, ends[:-1]) if len(group) > 1 else [pack]
      for number, part in zip(group, parts, strict=True):
        unpacked[number] = part.reshape(shapes[number])
    return structure.unflatten(unpacked)

  packs = [
      jnp.concatenate([arrays[number].ravel() for number in group])
      if len(group) > 1 else arrays[group[0]] for group in groups.values()
  ]
  return packs, unpack


def num_devices(mesh: AbstractMesh | None, axes: Sequence[str]) -> int:
  """Counts the devices along these axes of a mesh; one without a mesh."""
  return math.prod(mesh.shape[axis] for axis in axes) if mesh else 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def log_partitions(
    ring: Ring, matrices: tuple[Matrix, ...], vectors: Mapping[str, jax.Array],
    masks: Sequence[tuple[NegativeMask, NegativeMask]], temperature: jax.Array,
) -> list[tuple[Partition | None, Partition | None]]:
  """Computes partitions of rows and columns of each matrix; see `blocks.py`.

  The number of rows of every array is a multiple of the ring's devices.
  """

  def on_shard(vectors, masks, temperature):
    result = []
    for matrix, both in zip(matrices, masks, strict=True):
      rows, columns = _sides(ring, matrix, vectors, both)
      sums = _forward(ring, matrix, rows, columns, temperature)
      names = matrix.rows, matrix.columns
      result.append(tuple(
          running and tiles.finish(running, vectors[name].shape[0])
          for name, running in zip(names, sums, strict=True)
      ))
    return result

  return ring.on_shards(on_shard)(vectors, masks, temperature)


def _log_partitions_fwd(ring, matrices, vectors, masks, temperature):
  result = log_partitions(ring, matrices, vectors, masks, temperature)
  lse = [tuple(p and (p.lse, p.teacher_lse) for p in both) for both in result]
  return result, (vectors, masks, temperature, lse)


def _log_partitions_bwd(ring, matrices, residuals, cotangents):
  vectors, masks, temperature, lse = residuals
  bars = [
      tuple(
          d and tiles.Cotangent(value[0], d.lse, d.total, value[1], d.gap)
          for value, d in zip(*both, strict=True)
      ) for both in zip(lse, cotangents, strict=True)
  ]

  def on_shard(vectors, masks, bars, temperature):
    d_vectors = {
        name: jnp.zeros_like(tiles.cut_rows(x, ring.tile))
        for name, x in vectors.items()
    }
    # One after another, each adding to the gradients of the one before.
    for matrix, both, bar in zip(matrices, masks, bars, strict=True):
      rows, columns = _sides(ring, matrix, vectors, both)
      _backward(ring, matrix, rows, columns, bar, temperature, d_vectors)
    return {
        name: tiles.join(x, vectors[name].shape[0])
        for name, x in d_vectors.items()
    }

  d_vectors = ring.on_shards(on_shard)(vectors, masks, bars, temperature)
  # The sum of d_score * score over a matrix is that of d_row . row over its
  # rows, and that of d_column . column over its columns: the gradient of the
  # temperature costs no pass over the scores.
  twice = sum(jnp.sum(d_vectors[name] * x) for name, x in vectors.items())
  no_gradient = jax.tree.map(lambda _: None, masks)
  return d_vectors, no_gradient, -0.5 * twice / temperature


log_partitions.defvjp(_log_partitions_fwd, _log_partitions_bwd)


def _sides(ring, matrix, vectors, masks):
  names = matrix.rows, matrix.columns
  return tuple(
      tiles.cut(tiles.Side(vectors[name], mask), ring.tile)
      for name, mask in zip(names, masks, strict=True)
  )


def _forward(ring, matrix, rows, columns, temperature):
  """Returns statistics of the rows and columns of one device."""
  step = functools.partial(tiles.forward, matrix, rows)
  start = functools.partial(
      tiles.start, totals=ring.totals, distils=ring.distils
  )

  def start_columns():
    return start(columns, hardness=matrix.column_hardness)

  row_sums, column_sums = step(
      columns, temperature, start(rows, hardness=matrix.row_hardness)
      if matrix.of_rows else None,
      start_columns() if matrix.symmetric or matrix.of_columns else None,
      same_shard=True,
  )
  # Packed once, not at each hop.
  packs, unpack = _packed(columns)
  visitor, hops = ring.send(packs), ring.hops(matrix)

  def stop(carry, _):
    visitor, row_sums, column_sums = carry
    following = ring.send(visitor)
    # Merged last, so that nothing waits for them before that.
    arrived = ring.send(column_sums)
    row_sums, share = step(
        unpack(visitor), temperature, row_sums,
        None if arrived is None else start_columns(),
        same_shard=False,
    )
    column_sums = None if arrived is None else tiles.merge(arrived, share)
    return (following, row_sums, column_sums), None

  if hops:
    (visitor, row_sums, column_sums), _ = jax.lax.scan(
        stop, (visitor, row_sums, column_sums), length=hops
    )
    column_sums = ring.send(column_sums, -hops)
  if ring.halfway(matrix):
    row_sums, _ = step(
        unpack(visitor), temperature, row_sums, None, same_shard=False
    )
  if matrix.symmetric:
    row_sums, column_sums = tiles.merge(row_sums, column_sums), None
  return row_sums, column_sums


def _backward(ring, matrix, rows, columns, bars, temperature, d_vectors):
  """Adds the gradient of one matrix on one device to `d_vectors`."""
  row_bar, column_bar = jax.tree.map(
      lambda x: tiles.cut_rows(x, ring.tile), bars
  )
  step = functools.partial(tiles.backward, matrix, rows)
  if matrix.symmetric:
    column_bar = row_bar
  d_rows, d_columns = step(
      columns, temperature, row_bar, column_bar, d_vectors[matrix.rows],
      None if matrix.symmetric else d_vectors[matrix.columns], same_shard=True,
  )
  packs, unpack = _packed((columns, column_bar))
  visitor, hops = ring.send(packs), ring.hops(matrix)
  if matrix.symmetric:
    d_columns = jnp.zeros_like(d_rows)

  def stop(carry, _):
    visitor, d_rows, d_columns = carry
    following = ring.send(visitor)
    arrived = ring.send(d_columns)
    side, bar = unpack(visitor)
    d_rows, share = step(
        side, temperature, row_bar, bar, d_rows, jnp.zeros_like(d_columns),
        same_shard=False,
    )
    return (following, d_rows, arrived + share), None

  if hops:
    (visitor, d_rows, d_columns), _ = jax.lax.scan(
        stop, (visitor, d_rows, d_columns), length=hops
    )
    d_columns = ring.send(d_columns, -hops)
  if ring.halfway(matrix):
    side, bar = unpack(visitor)
    d_rows, _ = step(
        side, temperature, row_bar, bar, d_rows, None, same_shard=False
    )
  if matrix.symmetric:
    d_vectors[matrix.rows] = d_rows + d_columns if hops else d_rows
  else:
    d_vectors[matrix.rows], d_vectors[matrix.columns] = d_rows, d_columns
