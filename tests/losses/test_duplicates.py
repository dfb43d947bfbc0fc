"""Negatives left after duplicates, against counting, and as a run logs them."""

import types

import numpy as np
import pytest
import reference

from dualenc_jax import losses
from dualenc_jax.losses import blocks
from dualenc_jax.losses.blocks import Fingerprints, mean_negatives
from dualenc_jax.utils.errors import UserError


def make_texts(size, num_negatives, distinct, several=False, seed=0):
  """Texts that are each one of `distinct`; 9 of 10 hard negatives are real.

  With `several` all passages of a query in the batch are told, and one more.
  """
  rng = np.random.default_rng(seed)
  words = rng.integers(0, 2**64, distinct, np.uint64)
  query, passage = rng.choice(words, size), rng.choice(words, size)
  positives = np.repeat(passage[:, None], size + 1, axis=1)
  for row in range(size if several else 0):
    known = {*passage[query == query[row]].tolist()}
    known.add(int(words[int(query[row]) % distinct]))
    known.discard(int(passage[row]))
    positives[row, : len(known)] = sorted(known)
  return Fingerprints(
      query, passage, rng.choice(words, (size, num_negatives)),
      rng.random((size, num_negatives)) < 0.9, positives,
  )


def as_reference(texts):
  return reference.Batch(
      {},
      {
          'query': texts.query,
          'passage': texts.passage,
          'negatives': texts.negatives.reshape(-1),
      },
      texts.negative_valid.reshape(-1),
      [
          {passage, *row}
          for passage, row in zip(
              texts.passage.tolist(), texts.positives.tolist()
          )
      ],
  )


def counted(block, texts, mask):
  batch = as_reference(texts)
  total = 0
  for i in range(len(texts.query)):
    if block.candidates == 'negatives':
      rows = reference.hard_negatives(batch, i, mask)
    elif block.anchors == block.candidates:
      rows = reference.own_tower(batch, i, block.anchors, mask)
    else:
      rows = reference.other_pairs(batch, i, block.candidates, mask)
    total += len(list(rows))
  return total / len(texts.query)


@pytest.mark.parametrize('mask', [True, False])
@pytest.mark.parametrize('distinct', [5, 10**6])
@pytest.mark.parametrize(
    'block',
    [
        blocks.QUERY_PASSAGES, blocks.PASSAGE_QUERIES, blocks.QUERY_QUERIES,
        blocks.PASSAGE_PASSAGES, blocks.QUERY_HARD, blocks.PASSAGE_HARD,
    ],
)
def test_equal_to_counting(block, distinct, mask):
  if block != blocks.PASSAGE_PASSAGES:
    several = make_texts(23, 3, distinct, several=True)
    want = counted(block, several, mask)
    np.testing.assert_allclose(mean_negatives(block, several, mask), want)
  texts = make_texts(23, 3, distinct)
  want = counted(block, texts, mask)
  np.testing.assert_allclose(mean_negatives(block, texts, mask), want)
  if not mask or distinct == 10**6:
    full = block.size(23, 3)
    padding = (~texts.negative_valid).sum()
    assert want == full - (padding if block.name == 'hard' else 0)


# The first two share a query, and a hard negative is the first passage.
PAIRS = {
    'query': np.array([1, 1, 2, 3], np.uint64),
    'passage': np.array([11, 12, 13, 14], np.uint64),
    'negatives': np.array([[21], [11], [22], [0]], np.uint64),
    'negative_valid': np.array([[True], [True], [True], [False]]),
    'positives': np.array([[12], [11], [13], [14]], np.uint64),
}


def lines(picked):
  picker = types.SimpleNamespace(fingerprints=lambda step: picked)
  run = types.SimpleNamespace(batch_size=4, num_negatives=1, picker=picker)
  loss, similarity = losses.SamToNe(), losses.Similarity()
  return list(blocks.describe_left(loss, similarity, run, 7))


def test_negatives_after_duplicates():
  # In-batch: queries 1 and 2 have 2, the others 3. Same-tower: likewise. Hard:
  # three are real, of which one is a passage of the first two.
  assert lines(PAIRS) == [
      'After duplicates, in 10 batches: 7.5 negatives per query (2.5 in-batch,'
      ' 2.5 hard, 2.5 same-tower).'
  ]
  with pytest.raises(UserError, match='in 10 batches are masked out'):
    lines({name: np.ones_like(x) for name, x in PAIRS.items()})
