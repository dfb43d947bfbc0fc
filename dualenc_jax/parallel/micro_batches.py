"""Encoding in micro-batches, and sums of the parameters' gradients.

Micro-batches are gradient caching, exact as in GradCache (Gao et al., 2021):
the backward pass encodes each of them again, so that the activations of one are
alive at a time, while the loss sees the embeddings of the whole batch. Here it
is a scan over checkpoints.
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from dualenc_jax.parallel import partitioning, split_params
from dualenc_jax.parallel.split_params import DATA
from dualenc_jax.utils.errors import expect


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
  axis splits, see `split_params`, is summed and scattered at each use.

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
      partitioning.path_string(path): PartitionSpec(
          *(DATA if rules.get(axis) == DATA else None for axis in spec)
      )
      for path, spec in jax.tree_util.tree_leaves_with_path(
          nn.get_partition_spec(boxed())
      )
  }
  return jax.tree_util.tree_map_with_path(
      lambda path, _: axes.get(partitioning.path_string(path), PartitionSpec()),
      params,
  )


def _scan(
    encode: Callable[..., Any], size: int, params: Any, *trees: Any
) -> Any:
  rows = jax.tree.leaves(trees)[0].shape[0]

  def encode_rows(*trees):
    with split_params.gather_once():
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
