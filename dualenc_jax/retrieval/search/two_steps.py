"""Two-step search: the best codes by Hamming distance, scored again.

As in BPR (Yamada et al. 2021), codes have a bit per dimension, and the l codes
nearest to the signs of the query are ordered by the float query,

  sum_d q_d (2 bit_d - 1).

Both steps are exact, with ties by the ids, so that the hits are the same on any
mesh. In ranks of relevant passages all others stand behind these l, by their
Hamming distance.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dualenc_jax.retrieval.search import ranking as ranking_lib
from dualenc_jax.retrieval.search.exact_search import ExactSearch
from dualenc_jax.retrieval.search.ranking import best_hits, check_k, Ranking
from dualenc_jax.utils.errors import UserError


class TwoSteps:
  """Ranks a corpus of sign bits for any queries, as `ExactSearch` does."""

  def __init__(
      self, passages: Any, ids: Sequence[str],
      mesh: jax.sharding.Mesh | None = None,
  ):
    """Takes a `compression.Coded` of sign bits, whose codec has l."""
    self._passages = passages
    self._ids = ids
    self._first = ExactSearch(passages.two_steps(), ids, mesh)

  @property
  def rescored(self) -> int:
    """l, the candidates that are scored again, at most N."""
    return min(self._passages.codec.rescored, len(self._passages))

  def top_k(self, queries: np.ndarray, k: int) -> Ranking:
    """The k best of the l candidates of each query; see `ExactSearch.top_k`.

    Raises:
      UserError: k above l, or as `ExactSearch.top_k`.
    """
    check_k(k)
    count = len(self._passages)
    if min(k, count) > self.rescored:
      raise UserError(
          f'{k} hits per query are requested, but the codec'
          f' {self._passages.codec.name} scores only {self.rescored} again.'
          f' Request fewer, or use binary:{min(k, count)}.'
      )
    near = self._first.top_k(queries, self.rescored).indices
    own = self._passages.codec.queries(np.asarray(queries, np.float32))
    scores = ranking_lib.of_candidates(own, self._passages, near)
    return best_hits(scores, near, self._ids, k)

  def gold_ranks(
      self, queries: np.ndarray, gold: Sequence[Sequence[int]],
      self_hits: np.ndarray | None = None,
  ) -> np.ndarray:
    """As `ExactSearch.gold_ranks`."""
    ranks = self._first.gold_ranks(queries, gold, self_hits)
    near = np.flatnonzero((ranks > 0) & (ranks <= self.rescored))
    if not len(near):
      return ranks
    found = self.top_k(queries[near], self.rescored)
    if self_hits is not None:
      found = ranking_lib.without(found, self_hits[near])
    for query, hits in zip(near.tolist(), found.indices):
      places = np.flatnonzero(np.isin(hits, gold[query]))
      if len(places):
        ranks[query] = places[0] + 1
    return ranks


def search_of(
    passages: Any, ids: Sequence[str], mesh: jax.sharding.Mesh | None = None
) -> ExactSearch | TwoSteps:
  """The search of passages: `TwoSteps` for codes of bits, else exact."""
  codec = getattr(passages, 'codec', None)
  if codec is not None and codec.rescored is not None:
    return TwoSteps(passages, ids, mesh)
  return ExactSearch(passages, ids, mesh)
