"""The best scalar quantiser of normally distributed numbers.

Max, Quantizing for Minimum Distortion (1960); Lloyd (1982).
"""

import functools

import numpy as np

# Of Newton's method, more than enough.
_STEPS = 100


@functools.cache
def levels(bits: int) -> np.ndarray:
  """The 2^bits values that N(0, 1) is best rounded to, in squared error.

  Each is the mean of the numbers that are rounded to it, and these end in the
  middle between it and the next one. Newton's method solves these equations to
  float64's precision. They are float64 [2^bits], ascending and symmetric;
  read-only.
  """
  # As long to import as a third of JAX, and seldom needed.
  from scipy.special import ndtri

  count = 2**bits
  # The density of the best levels is that of N(0, 3), for many of them.
  values = np.sqrt(3) * ndtri((np.arange(count) + 0.5) / count)
  for _ in range(_STEPS):
    errors, slopes = _equations(values)
    step = np.linalg.solve(slopes, errors)
    # Levels stay in order: none moves by more than a third of a gap.
    gap = np.diff(values).min()
    values = values - step * min(1, gap / 3 / max(np.abs(step).max(), 1e-300))
    if np.abs(step).max() < 1e-14:
      break
  values = (values - values[::-1]) / 2
  values.setflags(write=False)
  return values


def _equations(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """How far levels are from the means of their cells, and the derivatives.

  With phi and Phi of N(0, 1), the mean of a cell (a, b) is
  m = (phi(a) - phi(b)) / (Phi(b) - Phi(a)), and dm/db = phi(b) (b - m) / mass.
  """
  from scipy.special import ndtr

  edges = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
  density = np.exp(-(edges**2) / 2) / np.sqrt(2 * np.pi)
  # From the nearer tail, where Phi has all its digits.
  mass = np.where(
      edges[:-1] > 0, ndtr(-edges[:-1]) - ndtr(-edges[1:]),
      ndtr(edges[1:]) - ndtr(edges[:-1]),
  )
  means = (density[:-1] - density[1:]) / mass
  low = density[1:-1] * (means[1:] - edges[1:-1]) / mass[1:]
  high = density[1:-1] * (edges[1:-1] - means[:-1]) / mass[:-1]
  # An edge moves by half of what either of its levels does.
  slopes = np.eye(len(values))
  inner = np.arange(len(values) - 1)
  slopes[inner, inner] -= high / 2
  slopes[inner, inner + 1] -= high / 2
  slopes[inner + 1, inner + 1] -= low / 2
  slopes[inner + 1, inner] -= low / 2
  return values - means, slopes
