"""The work of the loss benchmark, the same for all sides; NumPy only."""

import numpy as np

LOSSES = ('softmax', 'samtone_both')
# Products of [B, D] by [D, B], or of that size, 2 B^2 D operations each. Where
# every score is kept, a matrix of queries by passages takes one, and one for
# the gradient of either tower. One tower by itself is symmetric: half a product
# is enough for its scores, and one for their gradient.
NEEDED = {'softmax': 3.0, 'samtone_both': 3.0 + 2 * 1.5}
# The ring computes scores again for the gradient, and tiles on the diagonal of
# a symmetric matrix whole, which is not counted; sentence-transformers takes
# each direction apart: two for the scores, four for the gradients.
EXECUTED = {
    'ring': {'softmax': 4.0, 'samtone_both': 4.0 + 2 * 2.0},
    'dense': {'softmax': 3.0, 'samtone_both': 3.0 + 2 * 3.0},
    'st': {'softmax': 6.0},
    'st_cached': {'softmax': 6.0},
}


class TooLarge(Exception):
  """This would need more memory than it may take."""


def embeddings(
    batch: int, dim: int, shared: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
  """Queries and passages, float32 [B, D], rows of norm one.

  `shared` is the weight of what the two of a pair have in common. Cosines are
  about 0.8 for a pair and 0.4 for others at 1, 0.7 and 0.6 at 0.4.
  """
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.standard_normal(shape, np.float32)

  common = np.float32(shared) * normal(batch, dim) + normal(dim)

  def tower():
    rows = common + np.float32(0.7) * normal(batch, dim)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)

  return tower(), tower()


def product_flops(batch: int, dim: int) -> float:
  """Floating-point operations of one product."""
  return 2.0 * batch**2 * dim


def check_fits(needed: float, limit: float | None, free: float) -> None:
  """Raises TooLarge if `needed` bytes exceed `limit`, or 80% of `free`."""
  limit = 0.8 * free if limit is None else limit
  if needed > limit:
    raise TooLarge(
        f'needs {needed / 2**30:.1f} GiB, may take {limit / 2**30:.1f} GiB'
    )
