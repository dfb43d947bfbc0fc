"""Options and batches that a loss refuses, and ones it must survive."""

import jax
import jax.numpy as jnp
from loss_cases import LOSSES, make_batch, value_of
import numpy as np
import pytest

from dualenc_jax.losses import (
  LearnableTemperature,
  PAIR,
  SamToNe,
  Similarity,
  Sum,
)
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

SOFTMAX = 'softmax_two_way'


def test_one_candidate_is_an_error():
  embeddings, _ = make_batch(1, 0)
  for name in LOSSES:
    with pytest.raises(UserError, match='one candidate.*size, 1, above 1'):
      value_of(name, embeddings)


def test_one_pair_with_hard_negatives_has_candidates_on_the_query_side():
  embeddings, _ = make_batch(1, 3)
  value, _ = value_of('softmax_one_way', embeddings, temperature=0.1)
  q, p, n = embeddings.query[0], embeddings.passage[0], embeddings.negatives[0]
  scores = np.append(p @ q, n @ q)[[0, 1, 2, 3]] / 0.1
  scores = scores[np.append(True, embeddings.negative_valid[0])]
  np.testing.assert_allclose(
      value, np.log(np.exp(scores).sum()) - scores[0], rtol=1e-5
  )
  with pytest.raises(UserError, match='one candidate'):
    value_of(SOFTMAX, embeddings)


@pytest.mark.parametrize('field', ['query_ids', 'passage_ids', 'negative_ids'])
def test_missing_fingerprints_are_named(field):
  embeddings, _ = make_batch(4, 1)
  embeddings = embeddings._replace(**{field: None})
  with pytest.raises(UserError, match=f'no {field}.*mask_duplicates = False'):
    value_of(SOFTMAX, embeddings)
  jax.eval_shape(lambda: value_of(SOFTMAX, embeddings, mask_duplicates=False))


@pytest.mark.parametrize(
    'build, options, message',
    [
        (Similarity, {'temperature': 0.0}, r'Similarity\.temperature is 0\.0'),
        (Similarity, {'implementation': 'rings'}, "'rings'.*'auto', 'dense'"),
        (LearnableTemperature, {'initial': 2.0}, r'initial is 2\.0.*0\.005.*1'),
        (
            SamToNe, {'both_towers': True, 'bidirectional': False},
            'both_towers.*bidirectional = True',
        ),
        (Sum, {'parts': ((PAIR, 1.0),)}, r'Sum\.parts is the class PAIR'),
    ],
)
def test_options_are_refused(build, options, message):
  with pytest.raises(UserError, match=message):
    build(**options)


def test_arrays_as_temperatures():
  for wrong, message in (jnp.ones(3), 'one number'), (-jnp.ones(()), 'is -1'):
    with pytest.raises(UserError, match=f'Similarity.temperature .*{message}'):
      Similarity(wrong)


def test_a_batch_that_the_data_axis_does_not_divide():
  embeddings, _ = make_batch(6, 1)
  with Partitioner(2).scope():
    with pytest.raises(
        UserError, match='6 rows does not divide among the 4 devices'
    ):
      value_of(SOFTMAX, embeddings, implementation='ring')


def test_weights_of_another_shape():
  embeddings, _ = make_batch(6, 1)
  weights = np.ones((6, 1), np.float32)
  embeddings = embeddings._replace(columns={'weights': weights})
  with pytest.raises(UserError, match=r'weights has .*\(6, 1\); expected'):
    value_of(SOFTMAX, embeddings)
