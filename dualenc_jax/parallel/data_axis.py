"""The work of each device of the data axis by itself: micro-batches, FSDP.

Micro-batches are gradient caching, exact as in GradCache (Gao et al., 2021):
the backward pass encodes each of them again, so that the activations of one are
alive at a time, while the loss sees the embeddings of the whole batch. Here it
is a scan over checkpoints.

Within `map_rows` each device has a part of a parameter that the data axis
splits. A layer gathers it in the dtype of its product. Its gradient is
scattered to the parts as it is summed, in float32 unless set otherwise. If
layers are in a scan or computed again, at most one layer is gathered at a time.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import contextvars
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from dualenc_jax.parallel.accelerators import current_backend
from dualenc_jax.parallel.ring_order import Lines
from dualenc_jax.utils.errors import expect

DATA = 'data'

_path_string = functools.partial(
    jax.tree_util.keystr, simple=True, separator='/'
)

_gathered: contextvars.ContextVar[Any] = contextvars.ContextVar(
    '_gathered', default=None
)
_sums: contextvars.ContextVar[tuple[str, Lines | None]] = (
    contextvars.ContextVar('_sums', default=('float32', None))
)


def check_micro_batch_size(micro_batch_size: int, batch_size: int) -> None:
  """Raises a UserError unless micro-batches of this size make up the batch."""
  expect(
      micro_batch_size >= 1 and batch_size % micro_batch_size == 0,
      'MICRO_BATCH_SIZE', micro_batch_size,
      f'a divisor of BATCH_SIZE, {batch_size}',
  )


def map_rows(
    encode: Callable[..., Any], size: int | None, boxed: Callable[[], Any],
    params: Any, *trees: Any,
) -> Any:
  """Returns encode(params, *trees), computed for `size` rows at once.

  Each device of the data axis adds up the gradient of its own rows, over all
  micro-batches and all uses of a parameter, in the parameter's dtype; then the
  devices sum it once. XLA by itself sums it at each use, in the dtype of the
  product, and so in each micro-batch. The gradient of a parameter that the data
  axis splits, see `gather_param`, is summed and scattered at each use.

  Args:
    encode: maps parameters and trees of arrays of any number of rows to a tree
      of arrays of as many rows; a row of the result may depend on its own row
      of input only.
    size: rows of a micro-batch, a divisor of C and a multiple of the devices
      on the data axis; None for all at once.
    boxed: returns the abstract parameters of the model in their boxes of
      logical axes; called only if the data axis splits parameters.
    params: parameters; those that `boxed` lacks are not split.
    *trees: of arrays [C, ...], the leading axis over the data axis.
  """
  rows = jax.tree.leaves(trees)[0].shape[0]
  size = rows if size is None else size
  devices = _data_devices(rows, size)
  if devices == 1:
    return _scan(encode, size, params, *trees)
  # Activations are on this device alone, parameters may be parts.
  rules = [
      (name, None if name == 'batch' else axis)
      for name, axis in nn.get_logical_axis_rules()
  ]
  specs = _data_specs(params, boxed)

  def on_device(params, *trees):
    local = jax.tree.map(
        lambda x, spec: (
            x if DATA in spec else jax.lax.pcast(x, DATA, to='varying')
        ),
        params,
        specs,
    )
    with nn.logical_axis_rules(rules):
      return _scan(encode, size // devices, local, *trees)

  split = PartitionSpec(DATA)
  return jax.shard_map(
      on_device, axis_names={DATA}, in_specs=(specs, *[split] * len(trees)),
      out_specs=split,
  )(params, *trees)


def _data_devices(rows: int, size: int) -> int:
  """Devices of the data axis, if each can do its rows by itself; else 1."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = dict(zip(mesh.axis_names, mesh.axis_types))
  if kinds.get(DATA) != AxisType.Auto or not _data_axes() <= {'batch', 'embed'}:
    return 1
  devices = mesh.shape[DATA]
  return 1 if rows % devices or size % devices else devices


def _data_axes() -> set[str]:
  """Logical axes that the data axis splits."""
  return {name for name, axis in nn.get_logical_axis_rules() if axis == DATA}


def _data_specs(params: Any, boxed: Callable[[], Any]) -> Any:
  """The axis of each parameter that the data axis splits, if one."""
  if _data_axes() == {'batch'}:
    return jax.tree.map(lambda _: PartitionSpec(), params)
  rules = dict(nn.get_logical_axis_rules())
  axes = {
      _path_string(path): PartitionSpec(
          *(DATA if rules.get(axis) == DATA else None for axis in spec)
      )
      for path, spec in jax.tree_util.tree_leaves_with_path(
          nn.get_partition_spec(boxed())
      )
  }
  return jax.tree_util.tree_map_with_path(
      lambda path, _: axes.get(_path_string(path), PartitionSpec()),
      params,
  )


def _scan(
    encode: Callable[..., Any], size: int, params: Any, *trees: Any
) -> Any:
  rows = jax.tree.leaves(trees)[0].shape[0]

  def encode_rows(*trees):
    with gather_once():
      return encode(params, *trees)

  if size == rows:
    return encode_rows(*trees)

  # Micro-batch k has the rows k, k + C/m, k + 2 C/m, ...: as many of one
  # device's rows as of any other's. The leading axis is split and merged as it
  # is sharded, so no row moves.
  def split(x):
    return jnp.swapaxes(x.reshape(size, -1, *x.shape[1:]), 0, 1)

  def join(x):
    return jnp.swapaxes(x, 0, 1).reshape(rows, *x.shape[2:])

  # Within a scan nothing merges the first pass with the recomputation.
  encode_rows = jax.checkpoint(encode_rows, prevent_cse=False)
  _, encoded = jax.lax.scan(
      lambda carry, xs: (carry, encode_rows(*xs)),
      None,
      jax.tree.map(split, trees),
  )
  return jax.tree.map(join, encoded)


@contextlib.contextmanager
def use_sums(dtype: str, lines: Lines | None) -> Iterator[None]:
  """A context in which gradients of split parameters are sent in a dtype.

  They go along the lines of the data axis, one dimension after the other.
  """
  token = _sums.set((dtype, lines))
  try:
    yield
  finally:
    _sums.reset(token)


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
    known[key] = part, _gather(part, mesh_axes, dtype, *_sums.get())
  return known[key][1].astype(dtype)


def _mesh_axes(axes: Sequence[str | None]) -> tuple[Any, ...]:
  """Mesh axes of a parameter's axes, where devices have parts; else ()."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = dict(zip(mesh.axis_names, mesh.axis_types))
  if kinds.get(DATA) != AxisType.Manual:
    return ()
  rules: Any = dict(nn.get_logical_axis_rules())
  return tuple(rules.get(axis) for axis in axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gather(
    part: jax.Array, mesh_axes: tuple[str | None, ...], dtype: str,
    sum_dtype: str, lines: Lines | None,
) -> jax.Array:
  """The whole, float32 of values of `dtype`, so that gradients add up in it."""
  del sum_dtype
  axis = mesh_axes.index(DATA)

  def gather(part):
    for group in reversed(lines or (None,)):
      part = jax.lax.all_gather(
          part, DATA, axis=axis, axis_index_groups=group, tiled=True
      )
    return part

  return _map_other_axes(gather, mesh_axes, part.astype(dtype)).astype(
      'float32'
  )


def _gather_forward(part, *how):
  return _gather(part, *how), None


def _gather_backward(mesh_axes, dtype, sum_dtype, lines, _, gradient):
  del dtype
  axis = mesh_axes.index(DATA)

  def scatter(gradient):
    for group in lines or (None,):
      gradient = jax.lax.psum_scatter(
          gradient, DATA, scatter_dimension=axis, axis_index_groups=group,
          tiled=True,
      )
    return gradient

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
