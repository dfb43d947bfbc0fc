"""Levels against those that Max published, and against random numbers."""

import numpy as np
import pytest

from dualenc_jax.compression import lloyd_max


def distortion(bits):
  """By the trapezoidal rule, of N(0, 1)."""
  x = np.linspace(-12, 12, 200_001)
  density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
  levels = lloyd_max.levels(bits)
  which = np.searchsorted((levels[1:] + levels[:-1]) / 2, x)
  return np.trapezoid((x - levels[which]) ** 2 * density, x)


# Max, Quantizing for Minimum Distortion (1960), table I, whose distortions are
# up to 0.04% off.
@pytest.mark.parametrize('bits, positive, expected', [
    (1, [0.7980], 0.3634),
    (2, [0.4528, 1.510], 0.1175),
    (3, [0.2451, 0.7560, 1.344, 2.152], 0.03454),
    (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
])
def test_published(bits, positive, expected):
  levels = lloyd_max.levels(bits)
  assert levels.dtype == np.float64
  np.testing.assert_allclose(levels[2 ** (bits - 1) :], positive, rtol=4e-4)
  assert distortion(bits) == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize('bits', [1, 5, 8])
def test_each_level_is_the_mean_of_its_cell(bits):
  levels = lloyd_max.levels(bits)
  edges = (levels[1:] + levels[:-1]) / 2
  assert levels.shape == (2**bits,) and (np.diff(levels) > 0).all()
  np.testing.assert_array_equal(levels, -levels[::-1])
  for level, low, high in zip(levels, [-12, *edges], [*edges, 12]):
    x, weights = np.polynomial.legendre.leggauss(100)
    x = (high + low) / 2 + x * (high - low) / 2
    weights = weights * np.exp(-(x**2) / 2)
    assert (x * weights).sum() / weights.sum() == pytest.approx(level, 1e-10)
