"""Parameters that are split over the data axis and gathered by layer (FSDP).

Within `micro_batches.map_rows` each device has a part of such a parameter. A
layer gathers it in the dtype of its product. Its gradient is scattered to the
parts as it is summed, in float32 unless set otherwise. If layers are in a scan
or computed again, at most one layer is gathered at a time.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import contextvars
import functools
from typing import Any

from flax import linen as nn
import jax
from jax.sharding import AxisType, PartitionSpec

from dualenc_jax.parallel.accelerators import current_backend

DATA = 'data'

_gathered: contextvars.ContextVar[Any] = contextvars.ContextVar(
    '_gathered', default=None
)
_sum_dtype = contextvars.ContextVar('_sum_dtype', default='float32')


@contextlib.contextmanager
def use_sum_dtype(dtype: str) -> Iterator[None]:
  """A context in which gradients of split parameters are sent in a dtype."""
  token = _sum_dtype.set(dtype)
  try:
    yield
  finally:
    _sum_dtype.reset(token)


@contextlib.contextmanager
def gather_once() -> Iterator[None]:
  """A context in which layers that share a parameter gather it once."""
  token = _gathered.set({})
  try:
    yield
  finally:
    _gathered.reset(token)


def local_shape(
    shape: Sequence[int], axes: Sequence[str | None]
) -> tuple[int, ...]:
  """Returns the shape of a device's part of a parameter of logical axes."""
  mesh_axes = _mesh_axes(axes)
  if DATA not in mesh_axes:
    return tuple(shape)
  split = mesh_axes.index(DATA)
  devices = jax.sharding.get_abstract_mesh().shape[DATA]
  return *shape[:split], shape[split] // devices, *shape[split + 1 :]


def gather_param(
    part: jax.Array, axes: Sequence[str | None], dtype: str
) -> jax.Array:
  """Returns the whole parameter in `dtype`, of a device's float32 part."""
  mesh_axes = _mesh_axes(axes)
  if DATA not in mesh_axes:
    return part.astype(dtype)
  known = _gathered.get()
  if known is None:
    known = {}
  # The part is kept, so that no other array can get its id.
  key = id(part), dtype
  if key not in known:
    known[key] = part, _gather(part, mesh_axes, dtype, _sum_dtype.get())
  return known[key][1].astype(dtype)


def _mesh_axes(axes: Sequence[str | None]) -> tuple[Any, ...]:
  """Mesh axes of a parameter's axes, where devices have parts; else ()."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = dict(zip(mesh.axis_names, mesh.axis_types))
  if kinds.get(DATA) != AxisType.Manual:
    return ()
  rules: Any = dict(nn.get_logical_axis_rules())
  return tuple(rules.get(axis) for axis in axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(
    part: jax.Array, mesh_axes: tuple[str | None, ...], dtype: str,
    sum_dtype: str,
) -> jax.Array:
  """The whole, float32 of values of `dtype`, so that gradients add up in it."""

  def gather(part):
    return jax.lax.all_gather(
        part, DATA, axis=mesh_axes.index(DATA), tiled=True
    )

  return _map_other_axes(gather, mesh_axes, part.astype(dtype)).astype(
      'float32'
  )


def _gather_forward(part, *how):
  return _gather(part, *how), None


def _gather_backward(mesh_axes, dtype, sum_dtype, _, gradient):
  del dtype

  def scatter(gradient):
    return jax.lax.psum_scatter(
        gradient, DATA, scatter_dimension=mesh_axes.index(DATA), tiled=True
    )

  gradient = gradient.astype(sum_dtype)
  if current_backend() == 'cpu':
    # The CPU's compiler aborts at a sum in bfloat16.
    gradient = gradient.astype('float32')
  return (_map_other_axes(scatter, mesh_axes, gradient).astype('float32'),)


_gather.defvjp(_gather_forward, _gather_backward)


def _map_other_axes(
    move: Callable[[jax.Array], jax.Array], mesh_axes: tuple[str | None, ...],
    x: jax.Array,
) -> jax.Array:
  """Moves the part of each device of other axes, which XLA else gathers."""
  others = {axis for axis in mesh_axes if axis not in (None, DATA)}
  if not others:
    return move(x)
  spec = PartitionSpec(*(None if axis == DATA else axis for axis in mesh_axes))
  return jax.shard_map(move, axis_names=others, in_specs=spec, out_specs=spec)(
      x
  )
