"""What a loss logs, against NumPy."""

from loss_cases import make_batch, value_of
import numpy as np

from dualenc_jax.losses import Embeddings


def test_masked_fraction_of_a_batch_counted_by_hand():
  embeddings, _ = make_batch(4, 1)
  ids = np.arange(8, dtype=np.uint32).reshape(4, 2)
  embeddings = embeddings._replace(
      # Pairs 0 and 1 share a query, pairs 2 and 3 a passage.
      query_ids=ids[[0, 0, 1, 2]],
      passage_ids=ids[[0, 1, 2, 2]] + 100,
      # The first hard negative is passage 2; the last is padding.
      negative_ids=np.stack([ids[2] + 100, *ids[1:] + 200])[:, None],
      negative_valid=np.array([True, True, True, False])[:, None],
  )
  _, metrics = value_of('softmax_two_way', embeddings)
  # Of 4 x (3 in-batch + 4 hard): 4 same pairs, 2 hard ones equal to the
  # positive, 4 padding.
  np.testing.assert_allclose(metrics['masked_fraction'], 10 / 28, rtol=1e-6)


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
