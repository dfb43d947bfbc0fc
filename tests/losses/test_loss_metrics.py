"""What a loss logs, against NumPy."""

from loss_cases import value_of
import numpy as np

from dualenc_jax.losses import Embeddings


def test_a_constant_embedding_is_never_accurate(size=512, dim=16):
  row = np.random.default_rng(dim).normal(size=dim)
  rows = np.tile((row / np.linalg.norm(row)).astype(np.float32), (size, 1))
  ids = np.arange(2 * size, dtype=np.uint32).reshape(size, 2)
  _, metrics = value_of(
      'softmax_two_way', Embeddings(rows, rows, query_ids=ids, passage_ids=ids)
  )
  assert metrics['accuracy'] == 0
