"""A corpus as blocks on the devices, from memory or from disk."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

# The corpus is not split finer than this to avoid rows of padding.
_LEAST_ROWS = 1024
# [n M, D], the corpus row of the first, and how many count if not all do.
Block = tuple[jax.Array, np.int32, np.int32 | None]


class CorpusBlocks:
  """The rows of a corpus, block by block, as often as they are asked for."""

  def __init__(
      self,
      passages: Any,
      sharding: jax.sharding.Sharding,
      devices: int,
      block_rows: int,
      resident: bool,
  ):
    """Reads nothing yet.

    Args:
      passages: [N, D], an array or a store of rows.
      sharding: of a block over its rows.
      devices: n of it.
      block_rows: M, rows of a block on one device.
      resident: keeps all blocks on the devices once they are there.
    """
    self._passages = passages
    self._sharding = sharding
    self._devices = devices
    self._block_rows = block_rows
    self._resident = resident
    self._kept: list[Block] = []

  def __iter__(self) -> Iterator[Block]:
    """Yields the blocks; kept ones if they are resident."""
    if self._kept:
      yield from self._kept
      return
    blocks = []
    for block in self._read():
      if self._resident:
        blocks.append(block)
      yield block
    self._kept = blocks

  def _read(self) -> Iterator[Block]:
    """Reads the blocks, one at a time.

    What is left at the end goes in ever smaller powers of two, so that it is
    used where it lies, too, and the compiler sees few shapes.
    """
    total, devices = len(self._passages), self._devices
    start = 0
    while start < total:
      left = total - start
      rows, count = self._block_rows, None
      if left < rows * devices:
        rows = power_of_two(left // devices + 1) // 2
        if rows < min(_LEAST_ROWS, self._block_rows):
          rows, count = power_of_two(-(-left // devices)), np.int32(left)
      yield self._block(start, rows * devices), np.int32(start), count
      start += rows * devices

  def _block(self, start: int, size: int) -> jax.Array:
    """Rows of the corpus over the devices, zeros beyond its end."""
    total, dim = self._passages.shape

    def shard(index):
      first, end, _ = index[0].indices(size)
      rows = self._passages[min(start + first, total) : start + end]
      missing = end - first - len(rows)
      if not missing:
        return rows
      return np.concatenate([rows, np.zeros((missing, dim), rows.dtype)])

    return jax.make_array_from_callback((size, dim), self._sharding, shard)


def power_of_two(count: int) -> int:
  """The least power of two that is not below `count`."""
  return 1 << max(count - 1, 0).bit_length()
