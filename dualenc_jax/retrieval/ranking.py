"""Hits in one total order: trec_eval's.

Hits are ordered by score, highest first, and equal scores by passage id,
greatest string first. Ids are looked at only where scores tie, so a corpus of
millions costs nothing until then.

Shapes: Q queries, N corpus passages, C candidates, k hits a query.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ranking(NamedTuple):
  """The best hits of each query, best first.

  Attributes:
    scores: float32 [Q, k].
    indices: int64 [Q, k], rows of the corpus.
  """

  scores: np.ndarray
  indices: np.ndarray


def best_hits(
    scores: np.ndarray, indices: np.ndarray, ids: Sequence[str], k: int
) -> Ranking:
  """The k best of the candidates of each query, in order.

  Args:
    scores: float32 [Q, C]; -inf where a query has no candidate.
    indices: int64 [Q, C], rows of the corpus, no row twice in a query.
    ids: of all N passages; only those of candidates that tie are read.
    k: at most as many as each query has candidates.
  """
  # Adding zero turns -0.0 into 0.0: the two are a tie.
  keys = _as_ordered_integers(scores + np.float32(0)).astype(np.int64) << 32
  tied = _tied_rows(scores, indices)
  if len(tied):
    by_id = sorted(range(len(tied)), key=lambda i: ids[int(tied[i])])
    places = np.empty(len(tied), np.int64)
    places[by_id] = np.arange(len(tied))
    at = np.minimum(np.searchsorted(tied, indices), len(tied) - 1)
    keys |= np.where(tied[at] == indices, places[at], 0)
  order = np.argsort(keys, axis=1)[:, ::-1][:, :k]
  return Ranking(
      np.take_along_axis(scores, order, axis=1) + np.float32(0),
      np.take_along_axis(indices, order, axis=1),
  )


def without(ranking: Ranking, self_hits: np.ndarray) -> Ranking:
  """A ranking one hit shorter, from which one hit of each query is left out.

  Args:
    ranking: [Q, k].
    self_hits: the corpus row to leave out of each query's hits, [Q]; where it
      is none of them, -1 say, the last hit goes.
  """
  keep = ranking.indices != self_hits[:, None]
  keep[keep.all(axis=1), -1] = False
  shape = len(keep), -1
  return Ranking(
      ranking.scores[keep].reshape(shape), ranking.indices[keep].reshape(shape)
  )


def _tied_rows(scores: np.ndarray, indices: np.ndarray) -> np.ndarray:
  """The different corpus rows whose score another hit of the query has."""
  order = np.argsort(scores, axis=1)
  ascending = np.take_along_axis(scores, order, axis=1)
  same = (ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] > -np.inf)
  tied = np.zeros(scores.shape, bool)
  tied[:, 1:] |= same
  tied[:, :-1] |= same
  return np.unique(np.take_along_axis(indices, order, axis=1)[tied])


def _as_ordered_integers(scores: np.ndarray) -> np.ndarray:
  """float32 -> int32 of the same order."""
  bits = scores.view(np.int32)
  return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
