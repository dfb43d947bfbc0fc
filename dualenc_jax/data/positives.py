"""All labelled passages of each query, known by their fingerprints."""

import numpy as np

# Passages of a query that a batch tells, of those that are in the batch: masks
# are made of them, and a query may be found a thousand times.
MOST = 32


class Positives:
  """The passages of every query of a set of pairs.

  Attributes:
    most: passages that a query has beside one, at most `MOST`.
  """

  def __init__(self, queries: np.ndarray, passages: np.ndarray):
    """Groups pairs of fingerprints, uint64 [n] each."""
    ordered = np.sort(queries)
    if not (ordered[1:] == ordered[:-1]).any():
      # Nothing to keep of millions of queries with a passage each.
      self.most = 0
      return
    order = np.lexsort((passages, queries))
    queries, passages = queries[order], passages[order]
    new = np.ones(len(queries), bool)
    new[1:] = (np.diff(queries) != 0) | (np.diff(passages) != 0)
    queries, self._passages = queries[new], passages[new]
    self._queries, self._starts, self._counts = np.unique(
        queries, return_index=True, return_counts=True
    )
    self.most = min(int(self._counts.max(initial=1)) - 1, MOST)

  def others(self, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """The passages of each pair's query but the pair's own: uint64 [b, most].

    Of given pairs, queries [b] and passages with their hard negatives
    [b, 1 + K]. The own one stands in where there are fewer; of more, those
    among `passages` come first.
    """
    if not self.most:
      return np.zeros((len(queries), 0), np.uint64)
    group = np.searchsorted(self._queries, queries)
    starts, counts = self._starts[group], self._counts[group]
    place = np.arange(self.most + 1)
    there = place < counts[:, None]
    own = passages[:, :1]
    found = np.where(
        there, self._passages[np.where(there, starts[:, None] + place, 0)], own
    )
    for row in np.flatnonzero(counts > self.most + 1):
      everything = self._passages[starts[row] : starts[row] + counts[row]]
      here = np.intersect1d(everything, passages)
      here = here[here != own[row]][: self.most]
      found[row, : len(here)] = here
    # The own one goes to the end of its row, with those that stand in for it.
    order = np.argsort(found == own, axis=1, kind='stable')
    return np.take_along_axis(found, order, axis=1)[:, : self.most]
