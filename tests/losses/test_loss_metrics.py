"""What a loss logs, against NumPy."""

from loss_cases import make_batch, value_of
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


def test_norm_error_is_that_of_the_worst_embedding():
  embeddings, _ = make_batch(7, 3)
  vectors = embeddings.negatives.copy()
  vectors[2] *= 1.25
  vectors[4] *= 0.5
  embeddings = embeddings._replace(negatives=vectors)
  _, metrics = value_of('softmax_two_way', embeddings)
  assert 'norm_error' not in metrics
  # Missing hard negatives have any norm.
  embeddings.negatives[~embeddings.negative_valid] = 0
  _, metrics = value_of('softmax_two_way', embeddings, check_norms=True)
  vectors = vectors[embeddings.negative_valid]
  norms = np.linalg.norm(vectors.astype(np.float64), axis=-1)
  assert np.abs(norms - 1).max() > 0.49
  np.testing.assert_allclose(
      metrics['norm_error'], np.abs(norms - 1).max(), rtol=1e-5
  )
