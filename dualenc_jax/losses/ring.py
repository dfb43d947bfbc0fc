"""Log-partitions in memory that does not grow with the number of columns.

Every device holds its shard of rows. The shards of columns travel from device
to device by `ppermute`, and with them the running statistics of their columns;
at each stop all scores of the two shards are computed tile by tile and added to
the statistics of both. The backward pass sends the columns round again, and
their gradient with them. So the memory of a device is that of its own shards
and of one tile, and every score is computed twice, whichever way it counts.

A symmetric matrix needs half of the stops: what device d sees of shard d + k
is what d + k would see of shard d. If the number of devices is even, the two
opposite each other see the same, and each adds the half that is its own.

The next shard is sent for while the present one is in use, as are the
gradients that come with it, so that transfers hide behind products.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec
import jax.numpy as jnp

from dualenc_jax.losses import tiles
from dualenc_jax.losses.score_matrix import Form
from dualenc_jax.losses.score_matrix import Partition
from dualenc_jax.losses.score_matrix import Side

Partitions = tuple[Partition | None, Partition | None]


@dataclasses.dataclass(frozen=True)
class Ring:
  """The devices that the shards travel over.

  Attributes:
    mesh: None for one device, without a mesh.
    axes: axes of it that rows and columns are sharded over.
    tile: at most this many rows and columns are scored at once.
  """

  mesh: AbstractMesh | None
  axes: tuple[str, ...]
  tile: int

  @property
  def devices(self) -> int:
    if self.mesh is None:
      return 1
    sizes = [self.mesh.shape[axis] for axis in self.axes]
    return functools.reduce(int.__mul__, sizes, 1)

  def on_shards(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs `function` on each device's rows; its last argument is shared."""
    if self.mesh is None:
      return function
    sharded = PartitionSpec(self.axes)

    def mapped(*args):
      specs = (sharded,) * (len(args) - 1) + (PartitionSpec(),)
      return jax.shard_map(
          function, mesh=self.mesh, in_specs=specs, out_specs=sharded
      )(*args)

    return mapped

  def send(self, tree: Any, shift: int = 1) -> Any:
    """Sends every array to the device `shift` places further round the ring."""
    n = self.devices
    places = [(i, (i + shift) % n) for i in range(n)]
    return jax.tree.map(
        lambda x: jax.lax.ppermute(x, self.axes, places), tree
    )

  def hops(self, symmetric: bool) -> int:
    """Stops, the own shard aside, at which rows and columns are served."""
    n = self.devices
    return len([k for k in range(1, n) if not symmetric or 2 * k < n])

  def halfway(self, symmetric: bool) -> bool:
    """Whether there is a last stop that serves the rows alone."""
    return symmetric and self.devices % 2 == 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def log_partition(
    ring: Ring,
    form: Form,
    rows: Side,
    columns: Side | None,
    temperature: jax.Array,
) -> Partitions:
  """Partitions of the rows and of the columns; see `log_partition.py`.

  Args:
    ring: the devices.
    form: of the matrix.
    rows: [A, ...]; A is a multiple of the ring's devices.
    columns: [C, ...], likewise; None if `form.symmetric`.
    temperature: float32 [].

  Returns:
    Partitions of rows and columns, None where they are not wanted.
  """

  def on_shard(rows, columns, temperature):
    return _forward(ring, form, rows, columns, temperature)

  return ring.on_shards(on_shard)(rows, columns, temperature)


def _log_partition_fwd(ring, form, rows, columns, temperature):
  partitions = log_partition(ring, form, rows, columns, temperature)
  lse = tuple(None if p is None else p.lse for p in partitions)
  return partitions, (rows, columns, temperature, lse)


def _log_partition_bwd(ring, form, residuals, cotangents):
  rows, columns, temperature, lse = residuals
  bars = tuple(
      None if d is None else tiles.Cotangent(value, d.lse, d.total)
      for value, d in zip(lse, cotangents)
  )

  def on_shard(rows, columns, bars, temperature):
    return _backward(ring, form, rows, columns, bars, temperature)

  d_rows, d_columns = ring.on_shards(on_shard)(
      rows, columns, bars, temperature
  )
  # The sum of d_score * score over the matrix is that of d_row . row over the
  # rows, so the gradient of the temperature costs no pass over the scores. In
  # a symmetric matrix either vector of a score counts it.
  share = 0.5 if form.symmetric else 1.0
  d_temperature = -share * jnp.sum(d_rows * rows.vectors) / temperature
  return (
      _gradient(rows, d_rows),
      None if form.symmetric else _gradient(columns, d_columns),
      d_temperature,
  )


log_partition.defvjp(_log_partition_fwd, _log_partition_bwd)


def _gradient(side: Side, d_vectors: jax.Array) -> Side:
  return Side(d_vectors, type(side.ids)(None for _ in side.ids), None)


def _forward(ring, form, rows, columns, temperature) -> Partitions:
  """The forward pass on one device."""
  size = rows.vectors.shape[0]
  rows = tiles.cut(rows, ring.tile)
  home = rows if form.symmetric else tiles.cut(columns, ring.tile)
  row_sums = tiles.start(form, rows) if form.rows else None
  column_sums = tiles.start(form, home) if form.columns else None
  row_sums, column_sums = tiles.forward(
      form, rows, home, temperature, row_sums, column_sums, own=True
  )
  hops = ring.hops(form.symmetric)
  visitor = ring.send(home) if ring.devices > 1 else home

  def stop(carry, _):
    visitor, row_sums, column_sums = carry
    following = ring.send(visitor)
    sums = tiles.forward(
        form,
        rows,
        visitor,
        temperature,
        row_sums,
        ring.send(column_sums),
        own=False,
    )
    return (following, *sums), None

  if hops:
    (visitor, row_sums, column_sums), _ = jax.lax.scan(
        stop, (visitor, row_sums, column_sums), length=hops
    )
    column_sums = ring.send(column_sums, -hops)
  if ring.halfway(form.symmetric):
    row_sums, _ = tiles.forward(
        form, rows, visitor, temperature, row_sums, None, own=False
    )
  if form.symmetric:
    return tiles.finish(tiles.merge(row_sums, column_sums), size), None
  return (
      tiles.finish(row_sums, size) if form.rows else None,
      tiles.finish(column_sums, columns.vectors.shape[0])
      if form.columns
      else None,
  )


def _backward(ring, form, rows, columns, bars, temperature):
  """The backward pass on one device."""
  size = rows.vectors.shape[0]
  rows = tiles.cut(rows, ring.tile)
  home = rows if form.symmetric else tiles.cut(columns, ring.tile)
  row_bar, column_bar = jax.tree.map(
      lambda x: tiles.cut_rows(x, ring.tile), bars
  )
  if form.symmetric:
    column_bar = row_bar
  d_rows, d_columns = tiles.backward(
      form,
      rows,
      home,
      temperature,
      row_bar,
      column_bar,
      jnp.zeros_like(rows.vectors),
      jnp.zeros_like(home.vectors),
      own=True,
  )
  hops = ring.hops(form.symmetric)
  visitor = home, column_bar
  visitor = ring.send(visitor) if ring.devices > 1 else visitor

  def stop(carry, _):
    (columns, column_bar), d_rows, d_columns = carry
    following = ring.send((columns, column_bar))
    # What was added at the last stop arrives while this stop's share is made.
    arrived = ring.send(d_columns)
    d_rows, share = tiles.backward(
        form,
        rows,
        columns,
        temperature,
        row_bar,
        column_bar,
        d_rows,
        jnp.zeros_like(d_columns),
        own=False,
    )
    return (following, d_rows, arrived + share), None

  if hops:
    (visitor, d_rows, d_columns), _ = jax.lax.scan(
        stop, (visitor, d_rows, d_columns), length=hops
    )
    d_columns = ring.send(d_columns, -hops)
  if ring.halfway(form.symmetric):
    d_rows, _ = tiles.backward(
        form,
        rows,
        visitor[0],
        temperature,
        row_bar,
        visitor[1],
        d_rows,
        None,
        own=False,
    )
  if form.symmetric:
    return tiles.join(d_rows + d_columns, size), None
  return tiles.join(d_rows, size), tiles.join(
      d_columns, columns.vectors.shape[0]
  )
