"""The primitive of every loss: log-partitions over negatives.

One matrix of scores, all rows against all columns, gives the partition of each
row over its columns and that of each column over its rows. Two implementations
agree to rounding:

  dense  holds the matrix; XLA decides where it lives.
  ring   holds a tile of it: the columns travel from device to device.

`auto` takes dense up to `DENSE_BYTES` of scores a device, where it is as fast
and a ring of many devices would wait for its messages, and the ring above.
benchmarks/RESULTS.md has the measurements behind that number.
"""

import math

import jax
from jax.sharding import AbstractMesh
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.losses import dense
from dualenc_jax.losses import ring
from dualenc_jax.losses.score_matrix import Form
from dualenc_jax.losses.score_matrix import Partition
from dualenc_jax.losses.score_matrix import Side

IMPLEMENTATIONS = ('auto', 'dense', 'ring')
DENSE_BYTES = 2**25
TILE = 1024


def log_partition(
    form: Form,
    rows: Side,
    columns: Side | None,
    temperature: jax.Array | float,
    implementation: str = 'auto',
    tile: int = TILE,
) -> tuple[Partition | None, Partition | None]:
  """Log-partitions of the rows over the columns, and of the columns over rows.

  Arrays are global. The ring's devices are those of the mesh in scope
  (`jax.sharding.use_abstract_mesh`, which `Partitioner.scope` does): rows and
  columns are sharded over its axis `data`, or over all its axes where these
  divide them. Without a mesh, one device works tile by tile.

  Args:
    form: what is wanted of the matrix.
    rows: vectors float32 or bfloat16 [A, D], with ids and validity.
    columns: [C, D]; None if `form.symmetric`.
    temperature: divides the dot products.
    implementation: 'auto', 'dense' or 'ring'.
    tile: at most this many rows and columns are scored at once by the ring.

  Returns:
    Partitions of the rows and of the columns; None where not wanted, and for
    the columns of a symmetric matrix.

  Raises:
    UserError: the data axis does not divide A or C.
  """
  rows = _float32(rows)
  columns = rows if form.symmetric else _float32(columns)
  temperature = jnp.asarray(temperature, jnp.float32)
  mesh = _mesh()
  sizes = rows.vectors.shape[0], columns.vectors.shape[0]
  if implementation == 'auto':
    devices = 1 if mesh is None else mesh.size
    large = 4 * math.prod(sizes) > DENSE_BYTES * devices
    implementation = 'ring' if large else 'dense'
  if implementation == 'dense':
    return dense.log_partition(form, rows, columns, temperature)
  return ring.log_partition(
      ring.Ring(mesh, _axes(mesh, sizes), tile),
      form,
      rows,
      None if form.symmetric else columns,
      temperature,
  )


def check(name: str, implementation: str, tile: int) -> None:
  """Raises UserError unless the options of a loss `name` are known ones."""
  if implementation not in IMPLEMENTATIONS:
    raise UserError(
        f'{name}.implementation is {implementation!r}; expected one of'
        f' {", ".join(map(repr, IMPLEMENTATIONS))}.'
    )
  if type(tile) is not int or tile < 1:
    raise UserError(f'{name}.tile is {tile!r}; expected a whole number above 0.')


def _float32(side: Side) -> Side:
  return side._replace(vectors=side.vectors.astype(jnp.float32))


def _mesh() -> AbstractMesh | None:
  mesh = jax.sharding.get_abstract_mesh()
  return None if mesh.empty or mesh.size == 1 else mesh


def _axes(mesh: AbstractMesh | None, sizes: tuple[int, int]) -> tuple[str, ...]:
  """The mesh axes that divide the matrix among them."""
  if mesh is None:
    return ()
  if all(size % mesh.size == 0 for size in sizes):
    return mesh.axis_names
  if 'data' not in mesh.axis_names:
    raise UserError(
        f'The mesh in scope has the axes {", ".join(mesh.axis_names)}; the'
        ' ring of a loss needs one named data.'
    )
  for size in sizes:
    if size % mesh.shape['data']:
      raise UserError(
          f'A loss of {size} rows does not divide among the'
          f' {mesh.shape["data"]} devices on the data axis of the mesh. Make'
          ' the global batch a multiple of them.'
      )
  return ('data',)
