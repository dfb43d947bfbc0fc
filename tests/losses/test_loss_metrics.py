"""What a loss logs, against NumPy."""

from loss_cases import ALPHA, make_batch, value_of
import numpy as np
import pytest

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


@pytest.mark.parametrize('size', [3, 13])
def test_none_masked_is_exactly_zero(size):
  embeddings, _ = make_batch(size, 0)
  weights = np.random.default_rng(size).uniform(0.1, 1, size)
  columns = {'weights': weights.astype(np.float32)}
  embeddings = embeddings._replace(columns=columns)
  _, metrics = value_of('samtone_two_way', embeddings, mask_duplicates=False)
  assert metrics['masked_fraction'] == 0.0


@pytest.mark.parametrize('size, dim', [(2, 768), (512, 16)])
def test_a_constant_embedding_is_never_accurate(size, dim):
  row = np.random.default_rng(dim).normal(size=dim)
  rows = np.tile((row / np.linalg.norm(row)).astype(np.float32), (size, 1))
  ids = np.arange(2 * size, dtype=np.uint32).reshape(size, 2)
  _, metrics = value_of(
      'softmax_two_way', Embeddings(rows, rows, query_ids=ids, passage_ids=ids)
  )
  assert metrics['accuracy'] == 0


def test_pair_logs_both_of_its_losses():
  embeddings, _ = make_batch(7, 1)
  value, metrics = value_of('pair_two_way', embeddings)
  np.testing.assert_allclose(
      value,
      (1 - ALPHA) * (metrics['query_side_loss'] + metrics['passage_side_loss'])
      + ALPHA * metrics['passage_centric_loss'],
      rtol=1e-6,
  )
  _, query_centric = value_of('softmax_two_way', embeddings)
  for part in ('query_side_loss', 'passage_side_loss'):
    np.testing.assert_allclose(metrics[part], query_centric[part], rtol=1e-6)


@pytest.mark.parametrize('tower', ['query', 'passage', 'negatives'])
def test_norm_error_is_that_of_the_worst_embedding(tower):
  embeddings, _ = make_batch(7, 3)
  vectors = getattr(embeddings, tower).copy()
  vectors[2] *= 1.25
  vectors[4] *= 0.5
  embeddings = embeddings._replace(**{tower: vectors})
  _, metrics = value_of('softmax_two_way', embeddings)
  assert 'norm_error' not in metrics
  # Missing hard negatives have any norm.
  embeddings.negatives[~embeddings.negative_valid] = 0
  _, metrics = value_of('softmax_two_way', embeddings, check_norms=True)
  if tower == 'negatives':
    vectors = vectors[embeddings.negative_valid]
  norms = np.linalg.norm(vectors.astype(np.float64), axis=-1)
  assert np.abs(norms - 1).max() > 0.49
  np.testing.assert_allclose(
      metrics['norm_error'], np.abs(norms - 1).max(), rtol=1e-5
  )
