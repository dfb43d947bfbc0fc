"""The order of hits, that of trec_eval, by exact scores on a host.

Hits are ordered by score, highest first, and equal scores by passage id,
greatest string first. Ids are looked at only where scores tie, so a corpus of
millions costs nothing until then.

A score is the dot product summed in float64 from left to right and rounded
to float32. It is a function of the two vectors alone: it does not depend on
the block size, on a passage's place in the corpus, on the device, or on the
BLAS below NumPy, so equal passages tie exactly.

Shapes: Q queries, N corpus passages, D embedding dim, C candidates, k hits a
query. Queries are float32 [Q, D]; passages [N, D], an array or a store of rows
on disk; ids N strings.
"""

from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import os
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.utils.errors import expect

# Ids that are read at a time.
_CHUNK = 2**16
# Queries whose scores with the whole corpus are in memory at once, 512 MB for
# two million passages; and passages that are scored at once.
_QUERY_BLOCK, _PASSAGE_BLOCK = 64, 2**14
# Candidates of a query that are scored together, few enough that BLAS starts no
# threads of its own; and candidates that a thread takes at once, enough that
# threads seldom wait for Python's lock.
_GROUP, _AT_ONCE = 64, 512
# Pairs that are summed one by one are taken this many at a time.
_PAIR_BLOCK = 1024


class Ranking(NamedTuple):
  """The best hits of each query, best first.

  Scores are float32 [Q, k]; indices, rows of the corpus, int64 [Q, k]. A query
  with fewer hits has scores of -inf and rows of -1 behind them.
  """

  scores: np.ndarray
  indices: np.ndarray


def check_k(k: Any) -> None:
  """Raises UserError unless k, hits a query, is a whole number from 1 on."""
  is_whole = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
  expect(is_whole and k >= 1, 'k', k, 'a whole number, 1 or more')


def rank_candidates(
    scores: np.ndarray, indices: np.ndarray, ids: Sequence[str], k: int
) -> Ranking:
  """Ranks the candidates of each query: the k best, in order.

  Args:
    scores: float32 [Q, C]; -inf where a query has no candidate.
    indices: int64 [Q, C], rows of the corpus, each once in a query.
    ids: ids of all N passages; only those of candidates that tie are read.
    k: hits a query, at most its candidates.
  """
  places = np.zeros(indices.shape, np.int64)
  tied = _tied_rows(scores, indices)
  if len(tied):
    of_tied = id_places([ids[row] for row in tied.tolist()])
    at = np.minimum(np.searchsorted(tied, indices), len(tied) - 1)
    places = np.where(tied[at] == indices, of_tied[at], 0)
  order = np.argsort(sort_keys(scores, places), axis=1)[:, ::-1][:, :k]
  return Ranking(
      np.take_along_axis(scores, order, axis=1) + np.float32(0),
      np.take_along_axis(indices, order, axis=1),
  )


def rank_scores(scores: np.ndarray, places: np.ndarray, k: int) -> Ranking:
  """Ranks N scores of one query: the k best, or all, [1, min(k, N)].

  Args:
    scores: float32 [N]; -inf for passages that are not retrieved.
    places: `id_places` of all ids.
    k: hits.
  """
  k = min(k, len(scores))
  # The ids choose among all that tie with the k-th.
  found = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
  order = sort_keys(scores[found], places[found])
  if k < len(found):
    kept = np.argpartition(order, -k)[-k:]
    found, order = found[kept], order[kept]
  found = found[np.argsort(order)[::-1]]
  best = scores[found] + np.float32(0)
  return Ranking(best[None], np.where(best > -np.inf, found, -1)[None])


def sort_hits(hits: Mapping[str, float]) -> list[str]:
  """Sorts the ids of a query's hits, id -> score, as rankings are."""
  return sorted(
      hits, key=lambda hit: (np.float32(hits[hit]), hit), reverse=True
  )


def concatenate(rankings: Sequence[Ranking]) -> Ranking:
  """Concatenates rankings of different queries, with as many hits each."""
  return Ranking(*map(np.concatenate, zip(*rankings)))


def sort_keys(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Keys int64 that order hits as `rank_candidates` does; the best is largest.

  Scores are float32 of any shape; places of their ids, see `id_places`, are
  int64 of the same shape.
  """
  # Adding zero turns -0.0 into 0.0: the two are a tie.
  bits = (scores + np.float32(0)).view(np.int32)
  # As integers negative numbers would be in reverse order.
  bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)
  return bits.astype(np.int64) << 32 | places


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


def drop_self_hits(ranking: Ranking, self_hits: np.ndarray) -> Ranking:
  """Drops one hit of each query from a ranking [Q, k].

  The hit is the corpus row of the query in `self_hits` [Q], or the last hit if
  the row is -1 or no hit.
  """
  keep = (ranking.indices != self_hits[:, None]) | (ranking.indices < 0)
  keep[keep.all(axis=1), -1] = False
  shape = len(keep), -1
  return Ranking(
      ranking.scores[keep].reshape(shape), ranking.indices[keep].reshape(shape)
  )


def _tied_rows(scores: np.ndarray, indices: np.ndarray) -> np.ndarray:
  """The corpus rows whose score another hit of the query has, each once."""
  order = np.argsort(scores, axis=1)
  ascending = np.take_along_axis(scores, order, axis=1)
  same = (ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] > -np.inf)
  tied = np.zeros(scores.shape, bool)
  tied[:, 1:] |= same
  tied[:, :-1] |= same
  return np.unique(np.take_along_axis(indices, order, axis=1)[tied])


def dot_products(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
  """Scores of [..., Q, D] and [..., M, D]: float32 [..., Q, M].

  Each is a function of its pair alone. The inputs hold float32 values, so their
  products are exact in float64 and only the order of the sum can differ. BLAS
  picks it by shape and place, yet any two orders are at most
  2 (D - 1) 2^-53 |q| |p| apart. Where that cannot change the rounding to
  float32 the product of BLAS is the answer; the few pairs left are summed from
  left to right.
  """
  queries = queries.astype(np.float64, copy=False)
  passages = passages.astype(np.float64, copy=False)
  product = queries @ passages.swapaxes(-1, -2)
  longest = np.vecdot(passages, passages).max()
  longest *= np.vecdot(queries, queries).max()
  # Twice the bound, to cover the rounding of the bound itself.
  eps = np.finfo(np.float64).eps
  margin = 2 * queries.shape[-1] * eps * np.sqrt(longest)
  scores = (product - margin).astype(np.float32)
  open_ = np.nonzero(scores != (product + margin).astype(np.float32))
  for start in range(0, len(open_[0]), _PAIR_BLOCK):
    *outer, i, j = (axis[start : start + _PAIR_BLOCK] for axis in open_)
    terms = queries[(*outer, i)] * passages[(*outer, j)]
    scores[(*outer, i, j)] = np.add.accumulate(terms, axis=1)[:, -1]
  return scores


def score_candidates(
    queries: np.ndarray, passages: Any, candidates: np.ndarray
) -> np.ndarray:
  """Scores of some passages of each query: float32 [Q, C], -inf for none.

  Candidates are rows of the corpus, int64 [Q, C], or -1 for none.
  """
  count, width = candidates.shape
  of_query = max(-(-width // _GROUP), 1)
  size = max(-(-width // of_query), 1)
  missing = of_query * size - width
  groups = np.pad(candidates, ((0, 0), (0, missing)), constant_values=-1)
  groups = groups.reshape(-1, size)
  owners = np.repeat(np.arange(count), of_query)
  used = np.flatnonzero((groups >= 0).any(axis=1))
  step = _AT_ONCE // size
  scores = np.full(groups.shape, -np.inf, np.float32)

  def score(start: int) -> None:
    some = used[start : start + step]
    rows = groups[some]
    vectors = passages[np.maximum(rows, 0)]
    found = dot_products(queries[owners[some], None], vectors)[:, 0]
    scores[some] = np.where(rows >= 0, found, -np.inf)

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for _ in pool.map(score, range(0, len(used), step)):
      pass
  return scores.reshape(count, of_query * size)[:, :width]


def all_scores(queries: np.ndarray, passages: Any) -> Iterator[np.ndarray]:
  """Yields the exact scores of each query with all passages, float32 [N]."""
  for first in range(0, len(queries), _QUERY_BLOCK):
    some = queries[first : first + _QUERY_BLOCK]
    parts = [
        dot_products(some, passages[start : start + _PASSAGE_BLOCK])
        for start in range(0, len(passages), _PASSAGE_BLOCK)
    ]
    yield from np.concatenate(parts, axis=1)


def top_k(
    queries: np.ndarray, passages: Any, ids: Sequence[str], k: int,
    first: int = 0,
) -> Ranking:
  """Ranks the corpus by exact scores alone, more slowly than `ExactSearch`.

  Passages may be a part of it, from row `first` on; ids are those of all.
  """
  places = id_places(ids)[first : first + len(passages)]
  scores = all_scores(queries, passages)
  found = concatenate([rank_scores(own, places, k) for own in scores])
  return found._replace(indices=found.indices + first)


def count_above(
    queries: np.ndarray, passages: Any, ids: Sequence[str], gold: np.ndarray,
    gold_scores: np.ndarray, first: int = 0,
) -> np.ndarray:
  """Counts the passages ranked above one passage of each query: int64 [Q].

  The passage is row `gold`, int64 [Q], with score `gold_scores`, float32 [Q].
  `passages` may be a part of the corpus, as in `top_k`.
  """
  places = id_places(ids)
  own = places[first : first + len(passages)]
  above = np.zeros(len(queries), np.int64)
  for i, scores in enumerate(all_scores(queries, passages)):
    ties = (scores == gold_scores[i]) & (own > places[gold[i]])
    above[i] = np.count_nonzero((scores > gold_scores[i]) | ties)
  return above
