"""Attention of short rows with T5's bias as a TPU kernel (Pallas).

All logits of a head and a row are in the fast memory at once, so they are
neither written nor read: the backward pass computes them again, and sums the
gradient of the bias over the rows there. Shapes: R rows, L tokens, H heads,
K head_dim, G heads of a block, W = G K its lanes.

Within a block heads stay side by side, in the layout of the products before and
after: entries of other heads are set to zero instead of cut off, which costs
nothing, as a product over fewer than 128 lanes takes as long.
Logits have the keys first, [key, query], so that sums over keys are sums of
registers, and only one product of the backward pass needs a transpose.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
import numpy as np

from dualenc_jax.parallel.accelerators import current_backend

_LANES = 128
# Tokens of a row come in registers of so many bfloat16.
_SUBLANES = 16
# Longer rows would leave no room for the arrays of the next row.
_LONGEST = 512
_LOWEST = -0.7 * np.finfo(np.float32).max

# Contracted axes of products: a b, a b^T, a^T b.
_PLAIN, _RIGHT, _LEFT = ((1,), (0,)), ((1,), (1,)), ((0,), (0,))


def _dot(a: jax.Array, b: jax.Array, axes: Any) -> jax.Array:
  precision = 'highest' if a.dtype == jnp.float32 else 'default'
  return jax.lax.dot_general(
      a, b, (axes, ((), ())), precision=precision,
      preferred_element_type=jnp.float32,
  )


def _weights(scale, query, key, bias, mask) -> jax.Array:
  """Softmax over keys, times a number: [L, L] of keys and queries."""
  logits = jnp.where(mask, _dot(key, query, _RIGHT) + bias, _LOWEST)
  weights = jnp.exp(logits - jnp.max(logits, axis=0, keepdims=True))
  return weights * (scale / jnp.sum(weights, axis=0, keepdims=True))


def _head_mask(head: int, head_dim: int, shape: tuple[int, ...]) -> jax.Array:
  """True in the lanes of a head."""
  lane = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  return (lane >= head * head_dim) & (lane < (head + 1) * head_dim)


def _query_slices(length: int) -> list[slice]:
  """Slices of as many queries as registers have lanes."""
  return [slice(i, min(i + _LANES, length)) for i in range(0, length, _LANES)]


def _forward(head_dim, scale, bias, mask, query, key, value, out):
  k, v = key[0], value[0]
  for part in _query_slices(k.shape[0]):
    q = query[0, part]
    seen = mask[0, :, part].astype(jnp.int32) != 0
    result = jnp.zeros(q.shape, jnp.float32)
    for head in range(bias.shape[0]):
      own = _head_mask(head, head_dim, q.shape)
      own_q = jnp.where(own, q, 0)
      weights = _weights(scale, own_q, k, bias[head, :, part], seen)
      result = jnp.where(own, _dot(weights.astype(v.dtype), v, _LEFT), result)
    out[0, part] = result.astype(out.dtype)


def _backward(
    head_dim, scale, bias, mask, query, key, value, d_out,
    d_query, d_key, d_value, d_bias,
):
  @pl.when(pl.program_id(1) == 0)
  def _():
    d_bias[:] = jnp.zeros(d_bias.shape, d_bias.dtype)

  k, v = key[0], value[0]
  d_k, d_v = [jnp.zeros(k.shape, jnp.float32)] * 2
  for part in _query_slices(k.shape[0]):
    q, d = query[0, part], d_out[0, part]
    seen = mask[0, :, part].astype(jnp.int32) != 0
    d_q = jnp.zeros(q.shape, jnp.float32)
    for head in range(bias.shape[0]):
      own = _head_mask(head, head_dim, q.shape)
      own_q, own_d = (jnp.where(own, x, 0) for x in (q, d))
      weights = _weights(scale, own_q, k, bias[head, :, part], seen)
      d_weights = _dot(v, own_d, _RIGHT)
      mean = jnp.sum(weights * d_weights, axis=0, keepdims=True) / scale
      d_logits = jnp.where(seen, weights * (d_weights - mean), 0.0)
      d_bias[head, :, part] += d_logits
      d_logits = d_logits.astype(q.dtype)
      d_q = jnp.where(own, _dot(d_logits, k, _LEFT), d_q)
      d_k += _dot(d_logits, own_q, _PLAIN)
      d_v += _dot(weights.astype(v.dtype), own_d, _PLAIN)
    d_query[0, part] = d_q.astype(d_query.dtype)
  d_key[0] = d_k.astype(d_key.dtype)
  d_value[0] = d_v.astype(d_value.dtype)


def fits(query: jax.Array, bias: jax.Array) -> bool:
  """Whether the kernel can take arrays of such shapes on the mesh in scope.

  A TPU's compiler cannot split a kernel among devices: the kernel follows the
  mesh and the rules of `Partitioner.scope`, and without them needs one device.
  """
  rows, length, num_heads, head_dim = query.shape
  # A program for any number of rows is one for any platform, too.
  if not isinstance(rows, int) or bias.shape[0] != 1 or length > _LONGEST:
    return False
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    if current_backend() == 'tpu' and jax.device_count() > 1:
      return False
  elif AxisType.Explicit in mesh.axis_types:
    return False
  elif not nn.get_logical_axis_rules():
    if any(mesh.shape[name] > 1 for name in _free_axes(mesh)):
      return False
  batch, heads = _row_and_head_axes(mesh)
  if rows % _axis_size(mesh, batch) or num_heads % _axis_size(mesh, heads):
    return False
  num_heads //= _axis_size(mesh, heads)
  block = _heads_of_block(num_heads, head_dim)
  whole = block == num_heads or block * head_dim % _LANES == 0
  return num_heads % block == 0 and whole


def is_faster(query: jax.Array, bias: jax.Array) -> bool:
  """Whether the kernel fits and, by a TPU's compiler, is faster."""
  aligned = query.shape[1] % _SUBLANES == 0 and query.shape[3] % 8 == 0
  return aligned and fits(query, bias)


def fused_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array,
    mask: jax.Array, dropout_rate: float = 0.0, keep: jax.Array | None = None,
) -> jax.Array:
  """The kernel; arguments and result are those of `einsum_attention`.

  They must fit (`fits`). It has gradients in reverse mode, of the first order.
  Away from TPUs it is interpreted, which is for tests.
  """
  rows, length, num_heads, head_dim = query.shape
  if keep is not None:
    # To drop a key's weights of all queries is to drop its value.
    keep = jnp.moveaxis(keep, 3, 1)
    value = jnp.where(keep, value, 0)
  mask = jnp.broadcast_to(mask[:, 0], (rows, length, length))
  joined = (x.reshape(rows, length, -1) for x in (query, key, value))
  out = _attention(
      head_dim,
      1.0 if keep is None else 1.0 / (1.0 - dropout_rate),
      jnp.swapaxes(bias[0], 1, 2),
      jnp.swapaxes(mask, 1, 2).astype(jnp.int8),
      *joined,
  )
  return out.reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(head_dim, scale, bias, mask, query, key, value):
  """[R, L, H K]; bias [H, L, L] and mask int8 [R, L, L], by key and query."""

  def on_device(bias, mask, *tokens):
    return _run_kernel(_forward, head_dim, scale, bias, mask, tokens)

  (out,) = _on_devices(on_device, 1, False)(bias, mask, query, key, value)
  return out


def _attention_fwd(head_dim, scale, *arrays):
  return _attention(head_dim, scale, *arrays), arrays


def _attention_bwd(head_dim, scale, arrays, d_out):
  rows, _ = _row_and_head_axes(jax.sharding.get_abstract_mesh())

  def on_device(bias, mask, *tokens):
    *d_tokens, d_bias = _run_kernel(
        _backward, head_dim, scale, bias, mask, tokens
    )
    # Devices with other rows have the same bias.
    others = _varying_axes(d_bias) - _varying_axes(bias) | {rows} - {None}
    return *d_tokens, jax.lax.psum(d_bias, tuple(others))

  *d_tokens, d_bias = _on_devices(on_device, 3, True)(*arrays, d_out)
  return d_bias, None, *d_tokens


_attention.defvjp(_attention_fwd, _attention_bwd)


def _on_devices(
    function: Callable[..., Any], outputs: int, of_bias: bool
) -> Callable[..., Any]:
  """Runs `function` on each device's rows and heads of bias, mask and tokens.

  It returns so many arrays of tokens, and with `of_bias` one of the bias.
  """
  mesh = jax.sharding.get_abstract_mesh()
  free = _free_axes(mesh)
  if not free:
    return function
  batch, heads = _row_and_head_axes(mesh)
  tokens, bias = PartitionSpec(batch, None, heads), PartitionSpec(heads)

  def mapped(*arrays):
    return jax.shard_map(
        function,
        mesh=mesh,
        axis_names=free,
        in_specs=(bias, PartitionSpec(batch), *[tokens] * (len(arrays) - 2)),
        out_specs=(*[tokens] * outputs, *[bias] * of_bias),
        # JAX cannot check a kernel that is interpreted.
        check_vma=current_backend() == 'tpu',
    )(*arrays)

  return mapped


def _free_axes(mesh: AbstractMesh) -> set[str]:
  """The axes that no shard_map of a caller uses yet."""
  return {
      name
      for name, kind in zip(mesh.axis_names, mesh.axis_types)
      if kind != AxisType.Manual
  }


def _row_and_head_axes(mesh: AbstractMesh) -> tuple[str | None, str | None]:
  """Mesh axes of rows and of heads, by the rules in scope."""
  free = _free_axes(mesh)
  names: Any = nn.logical_to_mesh_axes(('batch', 'heads'))
  batch, heads = (name if name in free else None for name in names)
  return batch, heads


def _varying_axes(x: jax.Array) -> frozenset[str]:
  """Within shard_maps: axes along which devices have values of their own."""
  return jax.typeof(x).manual_axis_type.varying


def _axis_size(mesh: AbstractMesh, axis: str | None) -> int:
  return mesh.shape[axis] if axis else 1


def _heads_of_block(num_heads: int, head_dim: int) -> int:
  return min(max(_LANES // head_dim, 1), num_heads)


def _run_kernel(
    kernel: Callable[..., None], head_dim: int, scale: float, bias: jax.Array,
    mask: jax.Array, tokens: tuple[jax.Array, ...],
) -> Any:
  """Runs a kernel on each row of each block of heads of one device."""
  rows, length, lanes = tokens[0].shape
  width = _heads_of_block(lanes // head_dim, head_dim) * head_dim
  blocks = lanes // width
  of_tokens = pl.BlockSpec((1, length, width), lambda h, r: (r, 0, h))
  of_bias = pl.BlockSpec(
      (bias.shape[0] // blocks, length, length), lambda h, r: (h, 0, 0)
  )
  of_mask = pl.BlockSpec((1, length, length), lambda h, r: (r, 0, 0))
  # All inputs must vary along the same axes of the mesh.
  varying = jax.typeof(tokens[0]).manual_axis_type
  bias, mask = (
      jax.lax.pcast(x, tuple(varying.varying - _varying_axes(x)), to='varying')
      for x in (bias, mask)
  )
  like, out_specs = tokens[2:3], [of_tokens]
  if kernel is _backward:
    like, out_specs = (*tokens[:3], bias), [*[of_tokens] * 3, of_bias]
  out_shape = [
      jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=varying)
      for x in like
  ]
  return pl.pallas_call(
      functools.partial(kernel, head_dim, scale),
      grid=(blocks, rows),
      in_specs=[of_bias, of_mask, *[of_tokens] * len(tokens)],
      out_specs=out_specs,
      out_shape=out_shape,
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=('parallel', 'arbitrary')
      ),
      interpret=current_backend() != 'tpu',
      name=f'attention{kernel.__name__}',
      metadata={'steps': str(blocks * rows)},
  )(bias, mask, *tokens)
