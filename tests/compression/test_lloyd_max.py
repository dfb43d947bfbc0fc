"""Levels are those that are best for a normal distribution."""

import numpy as np
import pytest

from dualenc_jax.retrieval.compression import lloyd_max


@pytest.mark.parametrize('bits', range(1, 9))
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
