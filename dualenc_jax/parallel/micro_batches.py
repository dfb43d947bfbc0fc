"""Gradient caching: a batch goes through the towers a part at a time.

Exact, as in GradCache (Gao et al., 2021): the backward pass encodes each
micro-batch again, so only its own activations are ever alive, while the loss
sees the embeddings of the whole batch. Here it is a scan over checkpoints.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError


def check_size(micro_batch_size: int, batch_size: int) -> None:
  """Raises a UserError unless micro-batches of this size make up the batch."""
  if micro_batch_size < 1 or batch_size % micro_batch_size:
    raise UserError(
        f'MICRO_BATCH_SIZE is {micro_batch_size}; expected a divisor of'
        f' BATCH_SIZE, {batch_size}.'
    )


def map_rows(
    encode: Callable[..., Any], size: int | None, *trees: Any
) -> Any:
  """encode(*trees), computed for `size` rows at once.

  Args:
    encode: maps trees of arrays of any number of rows to a tree of arrays of
      as many rows; a row of the result may depend on its own row of input only.
    size: rows of a micro-batch, a divisor of C and a multiple of the devices
      on the data axis; None for all at once.
    *trees: of arrays [C, ...], the leading axis over the data axis.

  Returns:
    What `encode` returns, arrays [C, ...].
  """
  rows = jax.tree.leaves(trees)[0].shape[0]
  if size is None or size == rows:
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
