"""Batches a part at a time, and where their parameters' gradients are summed.

Micro-batches are gradient caching, exact as in GradCache (Gao et al., 2021):
the backward pass encodes each of them again, so only its own activations are
ever alive, while the loss sees the embeddings of the whole batch. Here it is a
scan over checkpoints.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from dualenc_jax.errors import UserError

_DATA = 'data'


def check_micro_batch_size(micro_batch_size: int, batch_size: int) -> None:
  """Raises a UserError unless micro-batches of this size make up the batch."""
  if micro_batch_size < 1 or batch_size % micro_batch_size:
    raise UserError(
        f'MICRO_BATCH_SIZE is {micro_batch_size}; expected a divisor of'
        f' BATCH_SIZE, {batch_size}.'
    )


def map_rows(
    encode: Callable[..., Any], size: int | None, params: Any, *trees: Any
) -> Any:
  """encode(params, *trees), computed for `size` rows at once.

  Where each device of the data axis has the whole parameters, it adds up the
  gradient of its own rows, over all micro-batches and all that `encode` does
  with a parameter, in the parameter's dtype; then the devices sum it once. XLA
  by itself sums it at each use, in the dtype of the product, and so in each
  micro-batch.

  Args:
    encode: maps parameters and trees of arrays of any number of rows to a tree
      of arrays of as many rows; a row of the result may depend on its own row
      of input only.
    size: rows of a micro-batch, a divisor of C and a multiple of the devices
      on the data axis; None for all at once.
    params: parameters, by whose gradients it is trained.
    *trees: of arrays [C, ...], the leading axis over the data axis.

  Returns:
    What `encode` returns, arrays [C, ...].
  """
  rows = jax.tree.leaves(trees)[0].shape[0]
  size = rows if size is None else size
  devices = _devices_with_all(rows, size)
  if devices == 1:
    return _scan(encode, size, params, *trees)
  rules = [
      (name, None if axis == _DATA else axis)
      for name, axis in nn.get_logical_axis_rules()
  ]

  def on_device(params, *trees):
    own = jax.lax.pcast(params, _DATA, to='varying')
    with nn.logical_axis_rules(rules):
      return _scan(encode, size // devices, own, *trees)

  split = PartitionSpec(_DATA)
  return jax.shard_map(
      on_device,
      axis_names={_DATA},
      in_specs=(PartitionSpec(), *[split] * len(trees)),
      out_specs=split,
  )(params, *trees)


def _devices_with_all(rows: int, size: int) -> int:
  """Devices of the data axis, if each has whole parameters; else 1."""
  mesh, rules = jax.sharding.get_abstract_mesh(), nn.get_logical_axis_rules()
  kinds = dict(zip(mesh.axis_names, mesh.axis_types))
  split = {name for name, axis in rules if axis == _DATA}
  if kinds.get(_DATA) != AxisType.Auto or split != {'batch'}:
    return 1
  devices = mesh.shape[_DATA]
  return 1 if rows % devices or size % devices else devices


def _scan(
    encode: Callable[..., Any], size: int, params: Any, *trees: Any
) -> Any:
  rows = jax.tree.leaves(trees)[0].shape[0]
  encode = functools.partial(encode, params)
  if size == rows:
    return encode(*trees)

  # Micro-batch k has the rows k, k + C/m, k + 2 C/m, ...: as many of one
  # device's rows as of any other's. The leading axis is split and merged as it
  # is sharded, so no row moves.
  def split(x):
    return jnp.swapaxes(x.reshape(size, -1, *x.shape[1:]), 0, 1)

  def join(x):
    return jnp.swapaxes(x, 0, 1).reshape(rows, *x.shape[2:])

  # Within a scan nothing merges the first pass with the recomputation.
  encode = jax.checkpoint(encode, prevent_cse=False)
  _, encoded = jax.lax.scan(
      lambda carry, xs: (carry, encode(*xs)), None, jax.tree.map(split, trees)
  )
  return jax.tree.map(join, encoded)
