"""Hybrid search: BM25 and dense scores of a whole corpus, fused into one.

There are two ways to fuse N scores each:

  weighted         (1 - weight) z(BM25) + weight z(dense), where z(s) is
                   (s - mean s) / standard deviation of s over the corpus
  reciprocal rank  sum of 1 / (60 + rank) over the two (Cormack 2009); ranks
                   beyond the first thousand do not count

A passage without a word of the query has no rank by BM25, and is no hit where
BM25 has all the weight.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from dualenc_jax.retrieval.search import ranking
from dualenc_jax.retrieval.search.bm25 import BM25, mask_unmatched
from dualenc_jax.retrieval.search.ranking import rank_scores, Ranking
from dualenc_jax.utils.errors import expect

RRF = 'rrf'
# The weight of the dense scores. On four sets it was ahead of reciprocal ranks,
# which a far weaker system harms, and never behind; see docs/evaluation.md.
WEIGHT = 0.5
# Added to ranks, as published; and the deepest rank that counts.
_CONSTANT, _DEPTH = 60, 1000
# Shares of the dense scores that `choose_weight` tries.
WEIGHTS = tuple(i / 20 for i in range(21))


@dataclasses.dataclass(frozen=True, eq=False)
class Hybrid:
  """N passages, scored by their words and by their embeddings [N, D].

  Their ids break ties of rank.
  """

  bm25: BM25
  embeddings: Any
  ids: Sequence[str]

  @functools.cached_property
  def places(self) -> np.ndarray:
    """The places of the ids in their order, int64 [N]."""
    return ranking.id_places(self.ids)

  def scores(
      self, queries: Sequence[str], embeddings: np.ndarray,
      weight: float | str = WEIGHT,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the scores of BM25 and the fused ones, float32 [N], by query.

    They are -inf for passages that are not retrieved. `weight` is the share of
    the dense scores, 0 to 1, or `RRF`.
    """
    check_weight(weight)
    for lexical, dense in self.score_both(queries, embeddings):
      own = mask_unmatched(lexical)
      if weight == RRF:
        yield own, fuse_ranks([own, dense], self.places)
      else:
        yield own, next(fuse_weighted(lexical, dense, [float(weight)]))

  def score_both(
      self, queries: Sequence[str], embeddings: np.ndarray
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields BM25 and dense scores, float32 [N] each, of each of Q queries."""
    if codec := getattr(self.embeddings, 'codec', None):
      embeddings = codec.queries(embeddings)
    dense = ranking.all_scores(embeddings, self.embeddings)
    for query, scores in zip(queries, dense):
      yield self.bm25.scores(query), scores

  def rank(
      self, queries: Sequence[str], embeddings: np.ndarray, k: int,
      weight: float | str = WEIGHT,
  ) -> Ranking:
    """Ranks the passages: the k best of each query, or all; see `scores`."""
    scores = self.scores(queries, embeddings, weight)
    return ranking.concatenate(
        [rank_scores(fused, self.places, k) for _, fused in scores]
    )


def z_scores(scores: np.ndarray) -> np.ndarray:
  """float64 [N] of mean 0 and deviation 1; zeros where all are equal."""
  scores = scores.astype(np.float64)
  if np.ptp(scores) == 0:
    return np.zeros_like(scores)
  return (scores - scores.mean()) / scores.std()


def fuse_weighted(
    lexical: np.ndarray, dense: np.ndarray, weights: Sequence[float]
) -> Iterator[np.ndarray]:
  """Yields weighted sums of z-scores, float32 [N], by the dense weights."""
  own, other = z_scores(lexical), z_scores(dense)
  for weight in weights:
    fused = (1 - weight) * own + weight * other
    yield (fused if weight else np.where(lexical > 0, fused, -np.inf)).astype(
        np.float32
    )


def fuse_ranks(
    scores: Sequence[np.ndarray], places: np.ndarray
) -> np.ndarray:
  """Fuses the scores [N] of several systems by their ranks: float32 [N].

  A passage that is a hit of none has -inf; a score of -inf is no hit.
  """
  total = np.zeros(len(places))
  for own in scores:
    best = rank_scores(own, places, _DEPTH).indices[0]
    best = best[best >= 0]
    total[best] += 1 / (_CONSTANT + np.arange(1, len(best) + 1))
  return np.where(total > 0, total, -np.inf).astype(np.float32)


def check_weight(weight: float | str) -> None:
  """Raises UserError unless it is `RRF` or a share."""
  expect(
      weight == RRF or isinstance(weight, (int, float)) and 0 <= weight <= 1,
      'The weight of hybrid search',
      weight,
      f'0 (BM25 alone) to 1 (dense alone), or {RRF!r} for reciprocal ranks',
  )
