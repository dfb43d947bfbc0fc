"""How many negatives the duplicate rule leaves, counted on the host."""

from typing import NamedTuple

import numpy as np

from dualenc_jax.losses.blocks import Block


class Fingerprints(NamedTuple):
  """The texts of B pairs with K hard negatives, uint64, equal if they are.

  Attributes:
    query: [B].
    passage: [B].
    negatives: [B, K]; K may be 0.
    negative_valid: bool [B, K], False where there is no such hard negative.
  """

  query: np.ndarray
  passage: np.ndarray
  negatives: np.ndarray
  negative_valid: np.ndarray


def mean_negatives(
    block: Block, texts: Fingerprints, mask_duplicates: bool
) -> float:
  """Negatives of an anchor of `block`, the mean over the B anchors.

  The rule is that of `InBatchSoftmax`; nothing of size B x B is made.
  """
  size = len(texts.query)
  anchors = getattr(texts, block.anchors)
  if block.candidates == 'negatives':
    hard = texts.negatives[texts.negative_valid]
    same = _occurrences(texts.passage, hard) if mask_duplicates else 0
    return float(np.mean(len(hard) - same))
  if not mask_duplicates:
    return float(size - 1)
  if block.anchors == block.candidates:
    return float(np.mean(size - _occurrences(anchors, anchors)))
  # Pairs with the same query or the same passage: all with either, less those
  # with both, which were counted twice.
  query, passage = (
      np.unique(x, return_inverse=True)[1] for x in (texts.query, texts.passage)
  )
  both = query * size + passage
  same = (
      _occurrences(texts.query, texts.query)
      + _occurrences(texts.passage, texts.passage)
      - _occurrences(both, both)
  )
  return float(np.mean(size - same))


def _occurrences(values: np.ndarray, among: np.ndarray) -> np.ndarray:
  """How often each value is found, int64 like `values`."""
  among = np.sort(among)
  first = np.searchsorted(among, values, side='left')
  return np.searchsorted(among, values, side='right') - first
