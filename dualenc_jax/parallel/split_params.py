"""Parameters split over the data axis, whole in a layer alone (FSDP).

Within `micro_batches.map_rows` each device has a part of such a parameter. A
layer gathers it in the dtype of its product, and its gradient is scattered to
the parts as it is summed, in float32 unless told otherwise. With layers in a
scan or computed again never more than one layer is whole.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import contextvars
import functools
from typing import Any

from flax import linen as nn
import jax
from jax.sharding import AxisType, PartitionSpec

from dualenc_jax.parallel.accelerators import backend_in_scope

DATA = 'data'

_gathered: contextvars.ContextVar[Any] = contextvars.ContextVar(
    '_gathered', default=None
)
_sum_dtype = contextvars.ContextVar('_sum_dtype', default='float32')


@contextlib.contextmanager
def sums_in(dtype: str) -> Iterator[None]:
  """Within it, gradients of split parameters are sent in this dtype."""
  token = _sum_dtype.set(dtype)
  try:
    yield
  finally:
    _sum_dtype.reset(token)


@contextlib.contextmanager
def gathered_once() -> Iterator[None]:
  """Within it, what several layers ask for is gathered, and scattered, once."""
  token = _gathered.set({})
  try:
    yield
  finally:
    _gathered.reset(token)


def own_shape(
    shape: Sequence[int], axes: Sequence[str | None]
) -> tuple[int, ...]:
  """The shape of a device's part of a parameter of these logical axes."""
  places = _places(axes)
  if DATA not in places:
    return tuple(shape)
  split = places.index(DATA)
  devices = jax.sharding.get_abstract_mesh().shape[DATA]
  return *shape[:split], shape[split] // devices, *shape[split + 1 :]


def whole(part: jax.Array, axes: Sequence[str | None], dtype: str) -> jax.Array:
  """The parameter of a device's float32 part, in `dtype`."""
  places = _places(axes)
  if DATA not in places:
    return part.astype(dtype)
  known = _gathered.get()
  if known is None:
    known = {}
  # Beside the part itself, so that no other can come to have its id.
  key = id(part), dtype
  if key not in known:
    known[key] = part, _gather(part, places, dtype, _sum_dtype.get())
  return known[key][1].astype(dtype)


def _places(axes: Sequence[str | None]) -> tuple[Any, ...]:
  """Mesh axes of a parameter's axes, where devices have parts; else ()."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = dict(zip(mesh.axis_names, mesh.axis_types))
  if kinds.get(DATA) != AxisType.Manual:
    return ()
  rules: Any = dict(nn.get_logical_axis_rules())
  return tuple(rules.get(axis) for axis in axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(
    part: jax.Array, places: tuple[str | None, ...], dtype: str, sum_dtype: str
) -> jax.Array:
  """The whole, float32 of values of `dtype`, so that gradients add up in it."""

  def gather(part):
    return jax.lax.all_gather(part, DATA, axis=places.index(DATA), tiled=True)

  return _beside(gather, places, part.astype(dtype)).astype('float32')


def _gather_forward(part, *how):
  return _gather(part, *how), None


def _gather_backward(places, dtype, sum_dtype, _, gradient):
  del dtype

  def scatter(gradient):
    return jax.lax.psum_scatter(
        gradient, DATA, scatter_dimension=places.index(DATA), tiled=True
    )

  gradient = gradient.astype(sum_dtype)
  if backend_in_scope() == 'cpu':
    # Whose compiler aborts at a sum in bfloat16.
    gradient = gradient.astype('float32')
  return (_beside(scatter, places, gradient).astype('float32'),)


_gather.defvjp(_gather_forward, _gather_backward)


def _beside(
    move: Callable[[jax.Array], jax.Array], places: tuple[str | None, ...],
    x: jax.Array,
) -> jax.Array:
  """Moves what each device of other axes has; XLA would gather that first."""
  others = {place for place in places if place not in (None, DATA)}
  if not others:
    return move(x)
  spec = PartitionSpec(*(None if p == DATA else p for p in places))
  return jax.shard_map(move, axis_names=others, in_specs=spec, out_specs=spec)(
      x
  )
