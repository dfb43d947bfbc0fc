"""Options and batches that a loss refuses, and ones it must survive."""

import jax
from loss_cases import LOSSES, make_batch, value_of
import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.losses import (
  AtTemperature,
  evaluate,
  InBatchSoftmax,
  LearnableTemperature,
  PAIR,
  SamToNe,
  Similarity,
  Sum,
)
from dualenc_jax.training import Partitioner

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
        (Similarity, {'temperature': np.nan}, 'temperature is nan'),
        (Similarity, {'temperature': 'abc'}, "temperature is 'abc'"),
        (Similarity, {'temperature': True}, 'temperature is True'),
        (Similarity, {'implementation': 'rings'}, "'rings'.*'auto', 'dense'"),
        (Similarity, {'tile': 0}, r'Similarity\.tile is 0; expected a whole'),
        (Similarity, {'tile': True}, 'tile is True'),
        (Similarity, {'false_negative_margin': np.inf}, 'margin is inf'),
        (Similarity, {'check_norms': 1}, 'check_norms is 1; expected True'),
        (LearnableTemperature, {'minimum': -1.0}, r'minimum is -1\.0'),
        (LearnableTemperature, {'initial': 2.0}, r'initial is 2\.0.*0\.005.*1'),
        (SamToNe, {'label_smoothing': 1.0}, r'SamToNe\.label_smoothing is 1'),
        (SamToNe, {'label_smoothing': '0.1'}, "label_smoothing is '0.1'"),
        (SamToNe, {'both_towers': 1}, 'both_towers is 1; expected True'),
        (
            SamToNe, {'both_towers': True, 'bidirectional': False},
            'both_towers.*bidirectional = True',
        ),
        (PAIR, {'alpha': np.nan}, r'PAIR\.alpha is nan'),
        (Sum, {'parts': ()}, r'Sum\.parts has \(\); expected pairs'),
        (Sum, {'parts': (PAIR(),)}, r'Sum\.parts has PAIR.*\(loss, weight\)'),
        (Sum, {'parts': ((PAIR, 1.0),)}, r'Sum\.parts is the class PAIR'),
        (
            AtTemperature, {'loss': PAIR(), 'temperature': 0},
            'temperature is 0; expected',
        ),
    ],
)
def test_options_are_refused(build, options, message):
  with pytest.raises(UserError, match=message):
    build(**options)


@pytest.mark.parametrize('model_parallel, size', [(1, 12), (2, 6), (4, 5)])
def test_a_batch_that_the_data_axis_does_not_divide(model_parallel, size):
  embeddings, _ = make_batch(size, 1)
  data = 8 // model_parallel
  with Partitioner(model_parallel).scope():
    with pytest.raises(
        UserError, match=f'{size} rows does not divide among the {data} devices'
    ):
      value_of(SOFTMAX, embeddings, implementation='ring')


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('query_ids', (6,), r'has the shape \(6,\); expected \(6, 2\)'),
        ('passage', (6, 8), r'passage has the shape \(6, 8\); expected'),
        ('negative_ids', (6, 2), r'negative_ids has .*expected \(6, 1, 2\)'),
        ('weights', (6, 1), r'weights has .*\(6, 1\); expected \(6,\),'),
        ('mine', (6, 3), r'mine has .*\(6, 3\); expected \(6,\) or \(6, 2\)'),
    ],
)
def test_arrays_that_do_not_belong_together(field, value, message):
  embeddings, _ = make_batch(6, 1)
  array = {field: np.ones(value, np.float32)}
  if field in embeddings._fields:
    embeddings = embeddings._replace(**array)
  else:
    embeddings = embeddings._replace(columns=array)
  with pytest.raises(UserError, match=message):
    value_of(SOFTMAX, embeddings)


def test_no_hard_negatives_in_an_array_of_none():
  embeddings, _ = make_batch(6, 0)
  value, _ = value_of(SOFTMAX, embeddings)
  none = embeddings._replace(
      negatives=np.ones((6, 0, 16), np.float32),
      negative_ids=np.ones((6, 0, 2), np.uint32),
  )
  assert value_of(SOFTMAX, none)[0] == value


def test_numbers_of_numpy_are_numbers():
  embeddings, _ = make_batch(4, 0)
  loss = SamToNe(margin=np.float64(0.1))
  similarity = Similarity(np.float32(0.5))
  found = jax.jit(lambda batch: evaluate(loss, similarity, {}, batch)[0])
  wanted, _ = value_of(
      'samtone_two_way', embeddings, margin=0.1, temperature=0.5
  )
  np.testing.assert_allclose(found(embeddings), wanted, rtol=1e-6)


def test_a_mesh_without_a_data_axis():
  embeddings, _ = make_batch(6, 0)
  mesh = jax.sharding.AbstractMesh((4, 2), ('x', 'y'))
  with jax.sharding.use_abstract_mesh(mesh):
    with pytest.raises(UserError, match='axes x, y, whose 8 .* rows .* data'):
      value_of(SOFTMAX, embeddings, implementation='ring')


@pytest.mark.parametrize(
    'returned, message',
    [
        (lambda rows: (rows, {}), r'Own returned .* \(4,\).* a scalar'),
        (lambda rows: rows.sum(), 'Own returned .*; expected a value and metr'),
    ],
)
def test_what_a_loss_may_not_return(returned, message):
  class Own(InBatchSoftmax):

    def __call__(self, params, batch, similarity):
      return returned(batch.query.sum(-1))

  batch, _ = make_batch(4, 0)
  with pytest.raises(UserError, match=message):
    evaluate(Own(), Similarity(), {}, batch)
