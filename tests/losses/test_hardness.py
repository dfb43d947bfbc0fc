"""Weights of hard negatives, against sentence-transformers and NumPy."""

import jax
import loss_cases
import meshes
import numpy as np
import pytest
import reference

from dualenc_jax.losses import InBatchSoftmax, LearnableTemperature, SamToNe
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

TEMPERATURE = LearnableTemperature(0.05)
# Mode, and a strength that is no default.
MODES = {
    'hard_negatives': 7.0, 'in_batch_negatives': 9.0, 'all_negatives': 5.0
}
# Directions and partition_mode there, and what ours is a multiple of.
THEIRS = {
    'softmax_two_way': (('query_to_doc', 'doc_to_query'), 'per_direction', 2),
    'samtone_one_way': (('query_to_doc', 'query_to_query'), 'joint', 1),
}
CASES = {
    (name, mode): {'hardness': mode, 'hardness_strength': strength}
    for name in THEIRS for mode, strength in MODES.items()
}
RING_CASES = {c: options for c, options in CASES.items() if 'soft' in c[0]}


def theirs(batch, name, mode):
  """Value and gradients of sentence-transformers' loss in float64."""
  from sentence_transformers.losses import MultipleNegativesRankingLoss
  import torch

  directions, partition, factor = THEIRS[name]
  vectors = {
      k: torch.tensor(x, requires_grad=True) for k, x in batch.vectors.items()
  }
  loss = MultipleNegativesRankingLoss(
      None, 1 / 0.05, lambda a, b: a @ b.T,
      directions=directions, partition_mode=partition, hardness_mode=mode,
      hardness_strength=MODES[mode],
  )
  size, dim = vectors['query'].shape
  columns = vectors['negatives'].reshape(size, -1, dim).unbind(1)
  value = factor * loss.compute_loss_from_embeddings(
      [vectors['query'], vectors['passage'], *columns], None
  )
  value.backward()
  gradients = {k: x.grad.numpy() for k, x in vectors.items()}
  return reference.Result(value.item(), gradients)


@pytest.mark.parametrize(
    'implementation, partitioner, cases, size, tile',
    [
        ('dense', None, CASES, 13, None),
        ('ring', Partitioner(), RING_CASES, 24, 2),
    ],
    ids=['dense', 'ring'],
)
def test_value_and_gradients(implementation, partitioner, cases, size, tile):
  losses = {
      case: loss_cases.make(
          case[0], temperature=TEMPERATURE, implementation=implementation,
          tile=tile, false_negative_margin=0.5, **options,
      )
      for case, options in cases.items()
  }
  program = meshes.on_mesh(partitioner, loss_cases.values_and_gradients(losses))

  # Masked are duplicates, missing negatives, and false ones.
  embeddings, batch = loss_cases.make_batch(size, 3, duplicates=True)
  got = jax.device_get(program(TEMPERATURE.init(), embeddings))
  for case, options in cases.items():
    loss_cases.check(
        got[case], case[0], batch, temperature=0.05, false_negative_margin=0.5,
        **options,
    )
  # What is no loss is that of the cosines.
  _, plain = loss_cases.value_of(
      'softmax_two_way', embeddings, temperature=0.05, false_negative_margin=0.5
  )
  for mode in MODES:
    metrics = got['softmax_two_way', mode][0][1]
    for name in ('accuracy', 'false_negative_fraction', 'masked_fraction'):
      np.testing.assert_allclose(metrics[name], plain[name], rtol=1e-6)
    assert metrics['query_side_loss'] > 1.05 * plain['query_side_loss']
    np.testing.assert_allclose(
        metrics['passage_side_loss'], plain['passage_side_loss'], rtol=1e-6
    )

  # None is, as positives are close to their queries.
  embeddings, batch = loss_cases.make_batch(size, 3, lean=1.0)
  embeddings = embeddings._replace(
      negative_valid=np.ones((size, 3), bool),
      positive_ids=np.repeat(embeddings.passage_ids[:, None], 3, axis=1),
  )
  got = jax.device_get(program(TEMPERATURE.init(), embeddings))
  for case in cases:
    (value, metrics), (_, vectors) = got[case]
    assert metrics['masked_fraction'] == 0
    want = theirs(batch, *case)
    np.testing.assert_allclose(value, want.value, rtol=1e-6)
    loss_cases.assert_gradients_close(vectors, want.gradients, 2e-6)


def test_bad_options_are_refused():
  with pytest.raises(UserError, match="ness is 'hard'; .*'all_negatives'"):
    SamToNe(hardness='hard')
  with pytest.raises(UserError, match='hardness_strength is 0; .*above 0'):
    InBatchSoftmax(hardness='all_negatives', hardness_strength=0)
  embeddings, _ = loss_cases.make_batch(4, 0)
  with pytest.raises(UserError, match='the batch has none: set NUM_NEGATIVES'):
    loss_cases.value_of(
        'softmax_two_way', embeddings, hardness='hard_negatives'
    )
  # Nor does it matter that all similarities are equal: to what?
  assert InBatchSoftmax(hardness='all_negatives').chance(8, 0) is None
