"""Memory for vectors that JAX on a CPU uses where it lies."""

import numpy as np

# Of XLA's arrays on a CPU. What NumPy allocates itself begins 16 bytes off.
_ALIGNMENT = 64


def empty_rows(count: int, dim: int) -> np.ndarray:
  """An uninitialised float32 [count, dim] at a multiple of 64 bytes."""
  size = 4 * count * dim
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(np.float32).reshape(count, dim)
