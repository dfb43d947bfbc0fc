"""Culprits among vectors and tensors are named."""

import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf, 1e20])
@pytest.mark.parametrize('make', [np.asarray, jnp.asarray])
def test_rows_are_named(make, bad):
  rows = np.zeros((5000, 3), np.float32)
  finite.check_rows('queries', make(rows))
  rows[4100:4110, 1] = bad
  ids = [f'q{i}' for i in range(len(rows))]
  with pytest.raises(UserError, match='queries of q4100, .*q4104 and 5 more'):
    finite.check_rows('queries', make(rows), ids.__getitem__)


@pytest.mark.parametrize('make', [np.asarray, jnp.asarray])
def test_tensors_are_named(make):
  finite.check_tensor('kernel', make(np.full((2, 3), -3e38, np.float32)))
  finite.check_tensor('nothing', make(np.zeros((0, 3), np.float32)))
  for bad in (np.nan, np.inf, -np.inf):
    with pytest.raises(UserError, match='kernel holds NaN .*Do this'):
      finite.check_tensor('kernel', make(np.array([1.0, bad])), 'Do this.')
