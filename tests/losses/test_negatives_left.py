"""Negatives per query as a run tells them, against counting by hand."""

import types

import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.losses import (
  AtTemperature,
  blocks,
  InBatchSoftmax,
  SamToNe,
  Similarity,
  Sum,
)


class FourPairs:
  """The first two share a query, and a hard negative is the first passage."""

  batch_size = 4

  def __init__(self, num_negatives):
    self.num_negatives = num_negatives

  @property
  def picker(self):
    return self

  def fingerprints(self, step):
    assert 7 <= step < 17
    return {
        'query': np.array([1, 1, 2, 3], np.uint64),
        'passage': np.array([11, 12, 13, 14], np.uint64),
        'negatives': np.array([[21], [11], [22], [0]], np.uint64),
        'negative_valid': np.array([[True], [True], [True], [False]]),
        'positives': np.array([[12], [11], [13], [14]], np.uint64),
    }


def lines(loss, num_negatives, **options):
  pairs = FourPairs(num_negatives)
  similarity = Similarity(**options)
  return list(blocks.describe_left(loss, similarity, pairs, 7))


def test_negatives_after_duplicates():
  # In-batch: queries 1 and 2 have 2, the others 3. Same-tower: likewise. Hard:
  # three are real, of which one is a passage of the first two.
  assert lines(SamToNe(), 1) == [
      'After duplicates, in 10 batches: 7.5 negatives per query (2.5 in-batch,'
      ' 2.5 hard, 2.5 same-tower).'
  ]
  assert lines(InBatchSoftmax(), 0) == [
      'After duplicates, in 10 batches: 2.5 negatives per query (2.5 in-batch).'
  ]
  # The union of what the parts use, through a wrapper, too.
  both = Sum(((InBatchSoftmax(), 1.0), (AtTemperature(SamToNe(), 0.1), 1.0)))
  assert lines(both, 1) == lines(SamToNe(), 1)
  assert '3.0 in-batch' in lines(InBatchSoftmax(), 0, mask_duplicates=False)[0]


def test_a_task_of_duplicates_is_an_error(monkeypatch):
  same = {
      'query': np.ones(4, np.uint64),
      'passage': np.ones(4, np.uint64),
      'negatives': np.ones((4, 0), np.uint64),
      'negative_valid': np.ones((4, 0), bool),
      'positives': np.ones((4, 0), np.uint64),
  }
  monkeypatch.setattr(FourPairs, 'fingerprints', lambda self, step: same)
  with pytest.raises(UserError, match='in 10 batches are masked out'):
    lines(SamToNe(), 0)


def test_a_loss_that_tells_no_blocks_gets_no_line():
  assert lines(types.SimpleNamespace(), 1) == []
