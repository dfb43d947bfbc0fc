"""Detection of texts that nearly repeat others: copies, backports, versions."""

from collections.abc import Sequence
import itertools
from typing import Any

import numpy as np

from dualenc_jax.data.text.words import split

# At 0.6 the code of two functions is a copy with other names; at 0.5 two short
# functions may do different things.
SIMILARITY = 0.6


def near_duplicates(
    texts: Sequence[str], others: Sequence[str], least: float = SIMILARITY
) -> np.ndarray:
  """Whether each of the N texts nearly equals one of the others: bool [N]."""
  found = np.zeros(len(texts), bool)
  found[near_pairs(texts, others, least)[0]] = True
  return found


def near_pairs(
    texts: Sequence[str], others: Sequence[str], least: float = SIMILARITY
) -> tuple[np.ndarray, np.ndarray]:
  """Numbers of texts, and of the others that they nearly equal: int [n] each.

  Two texts are nearly equal where |A & B| >= least |A | B| (Jaccard) for their
  sets A and B of pairs of neighbouring words.
  """
  if not len(texts) or not len(others):
    return np.zeros(0, int), np.zeros(0, int)
  pairs = _pairs([*texts, *others])
  rare = _rarest(pairs, least)
  # Two that are so near share one of their rarest pairs, too: so only few are
  # compared (Chaudhuri et al. 2006, prefix filtering).
  near = (rare[: len(texts)] @ rare[len(texts) :].T).tocoo()
  row, other = near.row, near.col + len(texts)
  shared = np.asarray(pairs[row].multiply(pairs[other]).sum(1)).ravel()
  sizes = np.diff(pairs.indptr)
  union = sizes[row] + sizes[other] - shared
  is_near = shared >= least * union
  return row[is_near], near.col[is_near]


def _pairs(texts: Sequence[str]) -> Any:
  """1 where a text has a pair of words, rarest first: csr int32 [N, pairs]."""
  from scipy import sparse  # Most commands start without it.

  numbers: dict[tuple[str, ...], int] = {}
  columns, ends = [], [0]
  for text in texts:
    words = split(text)
    # A text of a single word has no pairs.
    own: set[tuple[str, ...]] = {*itertools.pairwise(words)} or {*zip(words)}
    columns += [numbers.setdefault(pair, len(numbers)) for pair in own]
    ends.append(len(columns))
  frequency = np.bincount(columns, minlength=len(numbers))
  place = np.empty(len(numbers), np.int64)
  place[np.argsort(frequency, kind='stable')] = np.arange(len(numbers))
  ones = np.ones(len(columns), np.int32)
  matrix = sparse.csr_matrix(
      (ones, place[columns], ends), (len(texts), max(len(numbers), 1))
  )
  matrix.sort_indices()
  return matrix


def _rarest(pairs: Any, least: float) -> Any:
  """The n - ceil(least n) + 1 rarest of each text's n pairs."""
  sizes = np.diff(pairs.indptr)
  counts = np.minimum(sizes, sizes - np.ceil(least * sizes).astype(int) + 1)
  place = np.arange(pairs.nnz) - np.repeat(pairs.indptr[:-1], sizes)
  kept = place < np.repeat(counts, sizes)
  ends = np.concatenate([[0], np.cumsum(counts)])
  return type(pairs)((pairs.data[kept], pairs.indices[kept], ends), pairs.shape)
