"""Layers that are stacked in one array, and headers that say too many."""

import numpy as np
import pytest

from dualenc_jax.tensor_files import stacked_layers
from dualenc_jax.tensor_files.tensors import DamageError, Tensor


def tensors(count, *shape):
  return {
      f'e{i}/layers/x': Tensor(f'file: e{i}', shape, lambda: np.zeros(shape))
      for i in range(count)
  }


@pytest.mark.parametrize(
    'count, shape, words',
    [
        (1, (10_000, 3), 'at most 1,000 layers'),
        (101, (1_000, 0), 'more than 100,000 tensors'),
    ],
)
def test_more_than_any_model_has(count, shape, words):
  with pytest.raises(DamageError, match=words):
    stacked_layers.unstack(tensors(count, *shape))
