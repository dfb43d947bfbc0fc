"""`Rows`, many vectors that are read a block at a time."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
from typing import Any

import numpy as np

# Rows of a block: 50 MB of float32 at 768 dimensions.
BLOCK = 2**14


@dataclasses.dataclass(frozen=True)
class Rows:
  """N rows that need not fit the memory; iterating yields their blocks.

  Attributes:
    count: N.
    width: components of a row.
    dtype: of NumPy, or its name.
    blocks: returns the blocks [b, width] in order, of any b, each time it is
      called: what was written is compared with them.
  """

  count: int
  width: int
  dtype: Any
  blocks: Callable[[], Iterable[np.ndarray]]

  @classmethod
  def of(cls, store: Any) -> 'Rows':
    """The rows of a store [N, width]: an array, a memory map, or an index."""

    def blocks() -> Iterator[np.ndarray]:
      for start in range(0, len(store), BLOCK):
        yield store[start : start + BLOCK]

    count, width = store.shape
    return cls(count, width, store.dtype, blocks)

  def astype(self, dtype: Any) -> 'Rows':
    return self.mapped(lambda block: block.astype(dtype), self.width, dtype)

  def mapped(
      self, function: Callable[[np.ndarray], np.ndarray], width: int, dtype: Any
  ) -> 'Rows':
    """The rows that a function makes of each block: [b, width] of a dtype."""
    return Rows(self.count, width, dtype, lambda: map(function, self.blocks()))

  @property
  def nbytes(self) -> int:
    """How many bytes all of them have."""
    return self.count * self.width * np.dtype(self.dtype).itemsize

  def __len__(self) -> int:
    return self.count

  def __iter__(self) -> Iterator[np.ndarray]:
    found, dtype = 0, np.dtype(self.dtype)
    for block in self.blocks():
      if block.shape[1:] != (self.width,) or block.dtype != dtype:
        raise ValueError(
            f'a block is {block.dtype} {block.shape}: expected {dtype} [b,'
            f' {self.width}]'
        )
      found += len(block)
      yield block
    if found != self.count:
      raise ValueError(f'{found} rows: expected {self.count}')
