"""Exact search on the mesh: float32 on devices, then exact scores on hosts.

The corpus goes over the devices block by block, in memory or from disk. Each
device scores its rows of a block in float32 and keeps somewhat more than the k
best of each query. A float32 score differs from the true one by no more than
`error_bounds`, so every passage of the true top k has a float32 score of at
least the k-th best one less two bounds. The host scores these few again, see
`ranking`, and sorts them. Queries with more of them than were kept, as among
very many copies of a passage, are ranked on the host from scratch. So the
result does not depend on devices, blocks or rounding.

Hosts may share a corpus, a store with `own_part`. Each searches a part on its
own devices, and `shared` merges the hits.

A corpus of codes (`compression.Coded`) is searched alike: devices score codes,
the host scores what these decode to. Codes of sign bits with `rescored`
candidates are searched in two steps, as in BPR (Yamada et al. 2021): the l
codes nearest to the signs of the query by Hamming distance are ordered by the
float query, sum_d q_d (2 bit_d - 1). Both steps are exact, with ties by the
ids. In ranks of relevant passages all others stand behind these l, by their
Hamming distance.

Shapes: Q queries, N corpus passages, D embedding dim, k hits a query.
"""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import logging
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np

from dualenc_jax.retrieval.search import (
  ranking as ranking_lib,
  search_programs,
  shared,
)
from dualenc_jax.retrieval.search.ranking import (
  check_k,
  rank_candidates,
  Ranking,
  score_candidates,
)
from dualenc_jax.retrieval.search.search_programs import (
  BLOCK_ROWS,
  programs,
  TieWindow,
)
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.machine import device_memory

# Bytes of one array of scores: on a CPU, whose memory the corpus shares, and
# elsewhere.
_SCORES_ON_CPU, _SCORES = 2**26, 2**30
# Rows of a block of codes on a CPU, which decodes them all at once.
_CODED_ON_CPU = 2**14
# Passages that are kept around the score of a relevant one. The host merges
# few, so it can keep more, and ranks fewer queries from scratch.
_NEAR, _NEAR_ON_HOST = 256, 1024
# Programs that may wait on a device, each with its scores.
_IN_FLIGHT = 2
# Share of the devices' memory that a resident corpus may take.
_RESIDENT = 0.6
_DTYPES = np.float32, np.float16, ml_dtypes.bfloat16
_LOG = logging.getLogger(__name__)


class ExactSearch:
  """Ranks one corpus for any queries."""

  def __init__(
      self, passages: Any, ids: Sequence[str],
      mesh: jax.sharding.Mesh | None = None, block_rows: int = BLOCK_ROWS,
  ):
    """Takes the corpus; nothing is read yet.

    Args:
      passages: [N, D] float32, float16 or bfloat16, an array, a memory map, or
        any store of rows with `shape`, `dtype`, `store[start:stop]` and
        `store[int array]`; or a `compression.Coded`. On a CPU its memory is
        used in place where rows begin at multiples of 64 bytes.
      ids: N different strings, any sequence; they break ties.
      mesh: the devices, all by default, or those of this host if hosts share
        the corpus.
      block_rows: rows that a device scores at a time; they do not change the
        result.
    """
    _check_shape('passage', passages)
    if passages.dtype not in _DTYPES:
      raise UserError(
          f'passage embeddings are {passages.dtype}: expected float32, float16'
          ' or bfloat16, whose products are exact in float64.'
      )
    if len(ids) != len(passages):
      raise UserError(
          f'{len(ids)} passage ids for {len(passages)} passage embeddings:'
          ' expected one each.'
      )
    self._passages = passages
    part = getattr(passages, 'own_part', None)
    # The rows that this host searches, and the number of their first.
    start, self._own = part() if part else (0, passages)
    self._start: int = start
    self._is_shared = self._own is not passages
    self._ids = ids
    self._codec = getattr(passages, 'codec', None)
    self._quantiser = self._codec and self._codec.quantiser
    stored = self._own if self._codec is None else self._own.codes
    every = jax.local_devices if self._is_shared else jax.devices
    devices = np.array(every()) if mesh is None else mesh.devices
    self._programs = programs(tuple(devices.flat))
    on_cpu = devices.flat[0].platform == 'cpu'
    if self._quantiser is None:
      block_rows = min(block_rows, self._programs.block_rows)
    elif self._quantiser.is_decoded and on_cpu:
      block_rows = min(block_rows, _CODED_ON_CPU)
    # A corpus smaller than a block is one; sizes are few, for the compiler.
    own = search_programs.power_of_two(-(-len(stored) // devices.size))
    rows = min(block_rows, own)
    scores = _SCORES_ON_CPU if on_cpu else _SCORES
    self._query_rows = max(1, scores // (4 * rows))
    size = math.prod(stored.shape) * stored.dtype.itemsize
    memory = None if on_cpu else device_memory()
    resident = memory is not None and size < _RESIDENT * memory * devices.size
    self._blocks = search_programs.CorpusBlocks(
        stored, self._programs.split, devices.size, rows, resident
    )

  def top_k(self, queries: np.ndarray, k: int) -> Ranking:
    """Ranks the corpus for queries float32 [Q, D]: [Q, min(k, N)] hits."""
    check_k(k)
    queries = self._prepare(queries)
    size, k = len(self._own), min(k, len(self._passages))
    # Devices keep more, so that the k best are among them.
    count = min(size, k + k // 4 + 32)
    values, rows, _, longest = self._search(queries, count)
    own = values[:, : min(k, size)]
    worst = own[:, -1]
    if self._is_shared:
      worst, longest = shared.kth_best(own, k), shared.greatest(longest)
    limits = worst - 2 * longest * error_bounds(queries)
    is_candidate = values >= limits[:, None]
    if self._quantiser is not None and self._quantiser.is_exact:
      scores = np.where(is_candidate, values, -np.inf)
    else:
      scores = score_candidates(
          queries, self._own, np.where(is_candidate, rows, -1)
      )
    candidates = np.where(is_candidate, rows + self._start, -1)
    ranking = rank_candidates(scores, candidates, self._ids, own.shape[1])
    undecided = np.flatnonzero((count < size) & (values[:, -1] >= limits))
    if len(undecided):
      _log_undecided(len(undecided), len(queries))
      ranking.scores[undecided], ranking.indices[undecided] = ranking_lib.top_k(
          queries[undecided], self._own, self._ids, own.shape[1], self._start
      )
    return shared.merge(ranking, self._ids, k) if self._is_shared else ranking

  def gold_ranks(
      self, queries: np.ndarray, gold: Sequence[Sequence[int]],
      self_hits: np.ndarray | None = None,
  ) -> np.ndarray:
    """The rank of each query's best relevant passage in the full ranking.

    It counts the passages above and sorts nothing, but agrees exactly with the
    order of `top_k`, ties included.

    Args:
      queries: float32 [Q, D].
      gold: for each query the corpus rows of its relevant passages.
      self_hits: for each query a corpus row, not among its gold, that does not
        count, -1 for none; see `ranking.drop_self_hits`.

    Returns:
      int64 [Q], counted from 1; 0 for a query without a relevant passage here.
    """
    queries = self._prepare(queries)
    ranks = np.zeros(len(queries), np.int64)
    has_gold = np.flatnonzero([len(rows) > 0 for rows in gold])
    if not len(has_gold):
      return ranks
    queries = queries[has_gold]
    # The best of each query's relevant passages.
    gold = [gold[i] for i in has_gold.tolist()]
    rows = np.full((len(gold), max(map(len, gold))), -1, np.int64)
    for i, relevant in enumerate(gold):
      rows[i, : len(relevant)] = relevant
    scores = self.score(queries, rows)
    best = rank_candidates(scores, rows, self._ids, 1)
    above = self._hits_above(queries, best)
    if self_hits is not None:
      own = np.asarray(self_hits, np.int64)[has_gold]
      pairs = np.stack([best.indices[:, 0], own], axis=1)
      scores = self.score(queries, pairs)
      first = rank_candidates(scores, pairs, self._ids, 1).indices[:, 0]
      above -= (own >= 0) & (first == own)
    ranks[has_gold] = above + 1
    return ranks

  def _hits_above(self, queries: np.ndarray, gold: Ranking) -> np.ndarray:
    """The number of passages ranked above gold [Q, 1]: int64 [Q]."""
    targets, own = gold.scores[:, 0], gold.indices[:, 0]
    size = len(self._own)
    near = _NEAR_ON_HOST if self._programs.on_host else _NEAR
    count = min(size, near)
    values, rows, above, _ = self._search(queries, count, targets)
    above = above.astype(np.int64)
    candidates = np.where(values > -np.inf, rows, -1)
    scores = score_candidates(queries, self._own, candidates)
    candidates += self._start
    above += np.sum(scores > targets[:, None], axis=1)
    ties = (scores == targets[:, None]) & (candidates != own[:, None])
    for i, column in zip(*np.nonzero(ties)):
      above[i] += self._ids[int(candidates[i, column])] > self._ids[int(own[i])]
    undecided = np.flatnonzero((count < size) & (values[:, -1] > -np.inf))
    if len(undecided):
      _log_undecided(len(undecided), len(queries))
      above[undecided] = ranking_lib.count_above(
          queries[undecided], self._own, self._ids, own[undecided],
          targets[undecided], self._start,
      )
    return shared.total(above) if self._is_shared else above

  def score(
      self, queries: np.ndarray, rows: np.ndarray, passages: Any = None
  ) -> np.ndarray:
    """Exact scores of rows of the corpus [Q, C], -inf for -1.

    `passages` are this host's in another form, None for those searched.
    """
    own = rows - self._start
    own = np.where((rows >= 0) & (own >= 0) & (own < len(self._own)), own, -1)
    scores = score_candidates(
        queries, self._own if passages is None else passages, own
    )
    return shared.greatest(scores) if self._is_shared else scores

  def _search(
      self, queries: np.ndarray, count: int, targets: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Runs over all blocks for all queries, float32 [Q, D].

    Returns:
      The `count` best scores of each query, or with targets [Q] the nearest to
      these, minus their distance, [Q, count]; their rows, int64; the numbers
      of scores that are surely above the targets [Q]; and the greatest norm of
      a passage.
    """
    run = self._programs
    given, first = [queries], self._start
    if targets is not None:
      given += [targets, error_bounds(queries)]
    parts = [
        [jax.device_put(x, run.replicated) for x in part]
        for part in self._parts(*given)
    ]
    states = [run.start(len(part[0]), count) for part in parts]
    quantiser = jax.device_put(self._quantiser, run.replicated)
    longest = []
    in_flight: collections.deque[Any] = collections.deque()
    size, is_long = len(self._own), len(parts) > 1
    with _progress(size, is_long) as progress:
      for block, start, valid in self._blocks:
        longest.append(self._longest(block))
        for i, (part, *around) in enumerate(parts):
          near = TieWindow(longest[-1], *around) if around else None
          states[i] = run.update(
              states[i], block, part, quantiser, start, valid, near
          )
          in_flight.append(states[i])
          if len(in_flight) > _IN_FLIGHT:
            run.wait(in_flight.popleft())
        progress(min(len(block), size - int(start)))
    norms = np.array(jax.device_get(longest))
    if not np.isfinite(norms).all():
      finite.check_rows(
          'passage embeddings', self._own, lambda row: f'row {first + row}'
      )
    # The last part ends with queries of padding.
    values, rows, above = (
        np.concatenate(found)[: len(queries)]
        for found in zip(*map(run.finish, states))
    )
    return values, rows.astype(np.int64), above, float(norms.max())

  def _longest(self, block: jax.Array) -> Any:
    """An upper bound of the norms of a block."""
    bound = None if self._quantiser is None else self._quantiser.norm_bound
    if bound is None:
      return self._programs.longest(block)
    return np.float32(bound * (1 + 2.0**-23))

  def _parts(self, *per_query: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yields arrays of Q rows in parts of few sizes, the last padded."""
    total = len(per_query[0])
    for first in range(0, total, self._query_rows):
      count = min(self._query_rows, total - first)
      size = min(self._query_rows, _round_up(count))
      yield [
          np.concatenate([
              x[first : first + count],
              np.zeros((size - count, *x.shape[1:]), np.float32),
          ])
          for x in per_query
      ]

  def common(self, queries: np.ndarray) -> np.ndarray:
    """The queries [Q, D] of the first host, where hosts share the corpus."""
    return shared.common(queries) if self._is_shared else queries

  def _prepare(self, queries: np.ndarray) -> np.ndarray:
    _check_shape('query', queries)
    dim = self._passages.shape[1] if self._codec is None else self._codec.dim
    dims = queries.shape[1], dim
    if dims[0] != dims[1]:
      raise UserError(
          f'query embeddings have dim {dims[0]} and passage embeddings '
          f'{dims[1]}: expected the same. Encode both with one model.'
      )
    queries = np.asarray(queries, np.float32)
    finite.check_rows('query embeddings', queries)
    queries = self.common(queries)
    return queries if self._codec is None else self._codec.queries(queries)


class TwoStepSearch:
  """Ranks a corpus of sign bits for any queries, as `ExactSearch` does."""

  def __init__(
      self, passages: Any, ids: Sequence[str],
      mesh: jax.sharding.Mesh | None = None,
  ):
    """Takes a `compression.Coded` of sign bits, whose codec has `rescored`."""
    self._passages = passages
    _, self._own = passages.own_part()
    self._ids = ids
    self._first = ExactSearch(passages.first_step(), ids, mesh)

  @property
  def rescored(self) -> int:
    """l, the candidates that are scored again, at most N."""
    return min(self._passages.codec.rescored, len(self._passages))

  def top_k(self, queries: np.ndarray, k: int) -> Ranking:
    """Ranks the l candidates of each query; raises UserError for k above l."""
    check_k(k)
    count = len(self._passages)
    if min(k, count) > self.rescored:
      raise UserError(
          f'{k} hits per query are requested, but the codec'
          f' {self._passages.codec.name} scores only {self.rescored} again.'
          f' Request fewer, or use binary:{min(k, count)}.'
      )
    queries = self._first.common(np.asarray(queries, np.float32))
    near = self._first.top_k(queries, self.rescored).indices
    own = self._passages.codec.queries(queries)
    scores = self._first.score(own, near, self._own)
    return rank_candidates(scores, near, self._ids, k)

  def gold_ranks(
      self, queries: np.ndarray, gold: Sequence[Sequence[int]],
      self_hits: np.ndarray | None = None,
  ) -> np.ndarray:
    """Ranks as `ExactSearch.gold_ranks` does, in the order of two steps."""
    ranks = self._first.gold_ranks(queries, gold, self_hits)
    near = np.flatnonzero((ranks > 0) & (ranks <= self.rescored))
    if not len(near):
      return ranks
    found = self.top_k(queries[near], self.rescored)
    if self_hits is not None:
      found = ranking_lib.drop_self_hits(found, self_hits[near])
    for query, hits in zip(near.tolist(), found.indices):
      places = np.flatnonzero(np.isin(hits, gold[query]))
      if len(places):
        ranks[query] = places[0] + 1
    return ranks


def make_search(
    passages: Any, ids: Sequence[str], mesh: jax.sharding.Mesh | None = None
) -> ExactSearch | TwoStepSearch:
  """Makes the search of passages, in two steps for codes that rescore."""
  codec = getattr(passages, 'codec', None)
  if codec is not None and codec.rescored is not None:
    return TwoStepSearch(passages, ids, mesh)
  return ExactSearch(passages, ids, mesh)


def error_bounds(queries: np.ndarray) -> np.ndarray:
  """Rounding errors float32 [Q] of a score per unit of the passage's norm.

  A dot product of D terms, in any order, is off by at most about D epsilon
  |q| |p|, where epsilon is 2^-24. The bound is twice that, for the rounding of
  the norms and of products in three bfloat16 parts, plus the rounding of scores
  to float32. Devices may take numbers below 2^-126 for zero, which `LEAST_NORM`
  more on either norm covers.
  """
  norms = np.linalg.norm(queries.astype(np.float64), axis=1)
  norms += search_programs.LEAST_NORM
  terms = 2 * (queries.shape[1] + 4)
  return (norms * (terms + 1.5) * 2.0**-24).astype(np.float32)


def _round_up(count: int) -> int:
  """A power of two, or three quarters of one, that is not below `count`."""
  power = search_programs.power_of_two(count)
  less = 3 * power // 4
  return less if power >= 4 and count <= less else power


def _log_undecided(undecided: int, queries: int) -> None:
  _LOG.info(
      '%d of %d queries have too many passages of nearly one score; they are'
      ' ranked in float64 on the host.', undecided, queries,
  )


def _check_shape(side: str, embeddings: Any) -> None:
  """Raises UserError unless they are [rows, dim] with some of both."""
  if len(embeddings.shape) != 2 or 0 in embeddings.shape:
    raise UserError(
        f'{side} embeddings have shape {embeddings.shape}: expected '
        '[rows, dim], at least one of each.'
    )


def _progress(size: int, is_shown: bool) -> Any:
  """The progress of a search of `size` passages, a context."""
  if is_shown:
    # A saved retriever searches without tqdm, too.
    with contextlib.suppress(ImportError):
      from dualenc_jax.utils.progress import Progress

      return Progress('Searching', size, 'passages')
  return contextlib.nullcontext(lambda count: None)
