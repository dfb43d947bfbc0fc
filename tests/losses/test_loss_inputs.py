"""Options and batches that a loss refuses, and ones it must survive."""

import jax
from loss_cases import LOSSES, make_batch
import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.losses import (
  InBatchSoftmax,
  LearnableTemperature,
  PAIR,
  SamToNe,
)
from dualenc_jax.training import Partitioner

FAMILIES = [InBatchSoftmax, SamToNe, PAIR]


@pytest.mark.parametrize('name', LOSSES)
def test_one_candidate_is_an_error(name):
  embeddings, _ = make_batch(1, 0)
  with pytest.raises(UserError, match='one candidate.*batch size, 1, above 1'):
    LOSSES[name][0]()({}, embeddings)


def test_one_pair_with_hard_negatives_has_candidates_on_the_query_side():
  embeddings, _ = make_batch(1, 3)
  value, _ = InBatchSoftmax(temperature=0.1, bidirectional=False)(
      {}, embeddings
  )
  q, p, n = embeddings.query[0], embeddings.passage[0], embeddings.negatives[0]
  scores = np.append(p @ q, n @ q)[[0, 1, 2, 3]] / 0.1
  scores = scores[np.append(True, embeddings.negative_valid[0])]
  np.testing.assert_allclose(
      value, np.log(np.exp(scores).sum()) - scores[0], rtol=1e-5
  )
  with pytest.raises(UserError, match='one candidate'):
    InBatchSoftmax(bidirectional=True)({}, embeddings)


@pytest.mark.parametrize('make', FAMILIES)
@pytest.mark.parametrize('field', ['query_ids', 'passage_ids', 'negative_ids'])
def test_missing_fingerprints_are_named(make, field):
  embeddings, _ = make_batch(4, 1)
  embeddings = embeddings._replace(**{field: None})
  with pytest.raises(UserError, match=f'no {field}.*mask_duplicates = False'):
    make()({}, embeddings)
  value, _ = make(mask_duplicates=False)({}, embeddings)
  assert np.isfinite(value)


@pytest.mark.parametrize('make', FAMILIES)
@pytest.mark.parametrize('temperature', [0.0, -0.01, np.nan, np.inf])
def test_temperature_out_of_range(make, temperature):
  with pytest.raises(
      UserError, match=rf'{make.__name__}\.temperature is {temperature}'
  ):
    make(temperature=temperature)


@pytest.mark.parametrize('field', ['initial', 'minimum', 'maximum'])
@pytest.mark.parametrize('value', [0.0, -1.0, np.nan])
def test_learnable_temperature_out_of_range(field, value):
  with pytest.raises(UserError, match=f'{field} is {value}'):
    LearnableTemperature(**{field: value})


@pytest.mark.parametrize('initial', [0.001, 2.0])
def test_learnable_temperature_starts_within_its_bounds(initial):
  with pytest.raises(UserError, match=f'initial is {initial}.*0.005.*1.0'):
    LearnableTemperature(initial)


@pytest.mark.parametrize('make', FAMILIES)
@pytest.mark.parametrize('label_smoothing', [-0.1, 1.0, np.nan])
def test_label_smoothing_out_of_range(make, label_smoothing):
  with pytest.raises(UserError, match=f'label_smoothing is {label_smoothing}'):
    make(label_smoothing=label_smoothing)


@pytest.mark.parametrize('alpha', [-0.1, 1.1, np.nan])
def test_alpha_out_of_range(alpha):
  with pytest.raises(UserError, match=rf'PAIR\.alpha is {alpha}'):
    PAIR(alpha=alpha)


def test_both_towers_need_the_passage_side():
  with pytest.raises(UserError, match='both_towers.*bidirectional = True'):
    SamToNe(both_towers=True, bidirectional=False)


def test_defaults_are_the_papers():
  assert {make().temperature for make in FAMILIES} == {0.01}
  assert all(make().mask_duplicates for make in FAMILIES)
  assert PAIR().alpha == 0.1
  assert not SamToNe().both_towers


@pytest.mark.parametrize('make', FAMILIES)
@pytest.mark.parametrize('name', ['rings', 'Dense', '', None])
def test_unknown_implementation(make, name):
  with pytest.raises(
      UserError,
      match=rf"{make.__name__}\.implementation is {name!r}.*'auto', 'dense',"
      " 'ring'",
  ):
    make(implementation=name)


@pytest.mark.parametrize('make', FAMILIES)
@pytest.mark.parametrize('tile', [0, -1, 2.0, '8', True])
def test_bad_tile(make, tile):
  with pytest.raises(
      UserError, match=rf'{make.__name__}\.tile is {tile!r}; expected a whole'
  ):
    make(implementation='ring', tile=tile)


@pytest.mark.parametrize('model_parallel, size', [(1, 12), (2, 6), (4, 5)])
def test_a_batch_that_the_data_axis_does_not_divide(model_parallel, size):
  embeddings, _ = make_batch(size, 1)
  loss = InBatchSoftmax(implementation='ring')
  data = 8 // model_parallel
  with Partitioner(model_parallel).scope():
    with pytest.raises(
        UserError, match=f'{size} rows does not divide among the {data} devices'
    ):
      loss({}, embeddings)


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('query_ids', (6,), r'has the shape \(6,\); expected \(6, 2\)'),
        ('passage', (5, 16), r'passage has the shape \(5, 16\); expected'),
        ('passage', (6, 8), r'passage has the shape \(6, 8\); expected'),
        ('negatives', (6, 1, 8), r'negatives has the shape \(6, 1, 8\)'),
        ('negative_ids', (6, 2), r'negative_ids has .*expected \(6, 1, 2\)'),
        ('weights', (6, 1), r'weights has the shape \(6, 1\); expected \(6,\)'),
    ],
)
def test_arrays_that_do_not_belong_together(field, value, message):
  embeddings, _ = make_batch(6, 1)
  embeddings = embeddings._replace(**{field: np.ones(value, np.float32)})
  with pytest.raises(UserError, match=message):
    InBatchSoftmax()({}, embeddings)


@pytest.mark.parametrize('implementation', ['dense', 'ring'])
def test_no_hard_negatives_in_an_array_of_none(implementation):
  embeddings, _ = make_batch(6, 0)
  loss = InBatchSoftmax(implementation=implementation)
  value, _ = loss({}, embeddings)
  none = embeddings._replace(
      negatives=np.ones((6, 0, 16), np.float32),
      negative_ids=np.ones((6, 0, 2), np.uint32),
  )
  assert loss({}, none)[0] == value


def test_weights_of_zero_teach_nothing():
  embeddings, _ = make_batch(6, 0)
  embeddings = embeddings._replace(weights=np.zeros(6, np.float32))
  assert InBatchSoftmax()({}, embeddings)[0] == 0


@pytest.mark.parametrize(
    'options, message',
    [
        ({'temperature': 'abc'}, "temperature is 'abc'; expected a finite"),
        ({'temperature': True}, 'temperature is True; expected a finite'),
        ({'label_smoothing': '0.1'}, "label_smoothing is '0.1'; expected a"),
        ({'bidirectional': 'false'}, "bidirectional is 'false'; expected True"),
        ({'both_towers': 1}, 'both_towers is 1; expected True or False'),
        ({'margin': np.nan}, 'margin is nan; expected a finite number'),
    ],
)
def test_options_are_refused_that_are_of_another_type(options, message):
  with pytest.raises(UserError, match=message):
    SamToNe(**options)


def test_numbers_of_numpy_are_numbers():
  loss = SamToNe(np.float32(0.05), margin=np.float64(0.1))
  embeddings, _ = make_batch(4, 0)
  np.testing.assert_allclose(
      loss({}, embeddings)[0], SamToNe(0.05, margin=0.1)({}, embeddings)[0]
  )


def test_a_mesh_without_a_data_axis():
  embeddings, _ = make_batch(6, 0)
  mesh = jax.sharding.AbstractMesh((4, 2), ('x', 'y'))
  with jax.sharding.use_abstract_mesh(mesh):
    with pytest.raises(UserError, match='axes x, y, whose 8 .* rows .* data'):
      InBatchSoftmax(implementation='ring')({}, embeddings)


@pytest.mark.parametrize('label_smoothing', [0.0, 0.2])
@pytest.mark.parametrize('num_negatives', [0, 2])
def test_a_batch_of_duplicates_teaches_nothing(num_negatives, label_smoothing):
  embeddings, _ = make_batch(4, num_negatives)
  same = np.ones(2, np.uint32)
  embeddings = embeddings._replace(
      query_ids=np.broadcast_to(same, (4, 2)),
      passage_ids=np.broadcast_to(same, (4, 2)),
  )
  if num_negatives:
    embeddings = embeddings._replace(
        negative_ids=np.broadcast_to(same, (4, num_negatives, 2))
    )

  def values(query, passage):
    batch = embeddings._replace(query=query, passage=passage)
    results = [
        make(label_smoothing=label_smoothing)({}, batch)
        for make, _ in LOSSES.values()
    ]
    return sum(value for value, _ in results), results

  gradients, results = jax.jit(
      jax.grad(values, argnums=(0, 1), has_aux=True)
  )(embeddings.query, embeddings.passage)
  for value, metrics in results:
    assert value == 0
    assert metrics['masked_fraction'] == 1
  for gradient in gradients:
    np.testing.assert_array_equal(gradient, 0)
