"""Hits in one total order: trec_eval's.

Hits are ordered by score, highest first, and equal scores by passage id,
greatest string first. Ids are looked at only where scores tie, so a corpus of
millions costs nothing until then.

Shapes: Q queries, N corpus passages, C candidates, k hits a query.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.errors import UserError

# Ids that are decoded at a time.
_CHUNK = 2**16


class Ranking(NamedTuple):
  """The best hits of each query, best first.

  Attributes:
    scores: float32 [Q, k].
    indices: int64 [Q, k], rows of the corpus.
  """

  scores: np.ndarray
  indices: np.ndarray


def check_k(k: Any) -> None:
  """Raises UserError unless k, hits a query, is a whole number from 1 on."""
  if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
    raise UserError(f'k is {k!r}; expected a whole number, 1 or more.')


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
  places = np.zeros(indices.shape, np.int64)
  tied = _tied_rows(scores, indices)
  if len(tied):
    of_tied = id_places([ids[row] for row in tied.tolist()])
    at = np.minimum(np.searchsorted(tied, indices), len(tied) - 1)
    places = np.where(tied[at] == indices, of_tied[at], 0)
  order = np.argsort(keys(scores, places), axis=1)[:, ::-1][:, :k]
  return Ranking(
      np.take_along_axis(scores, order, axis=1) + np.float32(0),
      np.take_along_axis(indices, order, axis=1),
  )


def keys(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
  """int64 that order hits as `best_hits` does: the more, the better.

  Args:
    scores: float32 of any shape.
    places: int64 of that shape, of their ids among all, see `id_places`.
  """
  # Adding zero turns -0.0 into 0.0: the two are a tie.
  high = _as_ordered_integers(scores + np.float32(0)).astype(np.int64) << 32
  return high | places


def id_places(ids: Sequence[str]) -> np.ndarray:
  """The place of each id among all in ascending order: int64 [N].

  Strings compare by code point, which is the order of their UTF-8 bytes and
  therefore that of trec_eval's strcmp.
  """
  strings = np.dtypes.StringDType()
  chunks = [
      np.array([ids[i] for i in range(a, min(a + _CHUNK, len(ids)))], strings)
      for a in range(0, len(ids), _CHUNK)
  ]
  order = np.argsort(np.concatenate(chunks))
  places = np.empty(len(ids), np.int64)
  places[order] = np.arange(len(ids))
  return places


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
