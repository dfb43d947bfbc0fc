"""Exact search on the mesh: float32 on devices, then exact scores on hosts.

The corpus goes over the devices block by block, in memory or from disk. Each
device scores its rows of a block in float32 and keeps somewhat more than the k
best of each query. A float32 score differs from the true one by no more than
`error_bounds`, so every passage of the true top k has a float32 score of at
least the k-th best one less two bounds. The hosts score these few again, see
`ranking`, and sort them. Queries with more of them than were kept are scored
again in float64, and if that is not enough, as among very many copies of a
passage, they are ranked on the host from scratch. So the result does not depend
on devices, blocks or rounding.

A corpus of codes (`compression.Coded`) is searched alike: devices score codes,
the hosts score what these decode to.

Shapes: Q queries, N corpus passages, D embedding dim, k hits a query.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import contextlib
import logging
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np

from dualenc_jax.retrieval.search import ranking as ranking_lib, search_programs
from dualenc_jax.retrieval.search.host_best import programs
from dualenc_jax.retrieval.search.ranking import best_hits, check_k, Ranking
from dualenc_jax.retrieval.search.search_programs import BLOCK_ROWS, Programs
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.machine import device_memory

# Bytes of one array of scores: on a CPU, whose memory the corpus shares, and
# elsewhere.
_SCORES_ON_CPU, _SCORES = 2**26, 2**30
# Rows of a block of codes on a CPU: what is decoded of them stays small.
_CODED_ON_CPU = 2**14
# Kept around the score of a relevant passage.
_NEAR = 256
# Programs that may wait on a device, each with its scores.
_IN_FLIGHT = 2
# Share of the devices' memory that a resident corpus may take.
RESIDENT = 0.6
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
      mesh: the devices, all by default.
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
    self._ids = ids
    self._codec = getattr(passages, 'codec', None)
    self._quantiser = self._codec and self._codec.quantiser
    stored = passages if self._codec is None else passages.codes
    devices = np.array(jax.devices()) if mesh is None else mesh.devices
    self._programs = programs(tuple(devices.flat))
    # A TPU has no float64 of its own.
    has_float64 = devices.flat[0].platform != 'tpu'
    self._wide = programs(tuple(devices.flat), True) if has_float64 else None
    on_cpu = devices.flat[0].platform == 'cpu'
    if self._quantiser is None:
      block_rows = min(block_rows, self._programs.block_rows)
    elif getattr(self._quantiser, 'is_decoded', False) and on_cpu:
      block_rows = min(block_rows, _CODED_ON_CPU)
    # A corpus smaller than a block is one; sizes are few, for the compiler.
    own = search_programs.power_of_two(-(-len(passages) // devices.size))
    rows = min(block_rows, own)
    self._query_rows = query_rows(rows, on_cpu)
    size = math.prod(stored.shape) * stored.dtype.itemsize
    memory = None if on_cpu else device_memory()
    resident = memory is not None and size < RESIDENT * memory * devices.size
    self._blocks = search_programs.CorpusBlocks(
        stored, self._programs.split, devices.size, rows, resident
    )

  def top_k(self, queries: np.ndarray, k: int) -> Ranking:
    """Ranks the whole corpus for queries float32 [Q, D]: [Q, min(k, N)] hits.

    Raises:
      UserError: k below 1, no queries, another dim, or a vector that is not
        finite (its row is named).
    """
    check_k(k)
    queries = self._checked(queries)
    k = min(k, len(self._passages))
    ranking, undecided = self._top_k(queries, k, self._programs)
    if len(undecided) and self._wide:
      found, still = self._top_k(queries[undecided], k, self._wide, 4)
      ranking.scores[undecided], ranking.indices[undecided] = found
      undecided = undecided[still]
    if len(undecided):
      _log_undecided(len(undecided), len(queries))
      found = ranking_lib.top_k(
          queries[undecided], self._passages, self._ids, k
      )
      ranking.scores[undecided], ranking.indices[undecided] = found
    return ranking

  def _top_k(
      self, queries: np.ndarray, k: int, run: Programs, more: int = 1
  ) -> tuple[Ranking, np.ndarray]:
    """A ranking that keeps `more` extra hits, and the queries in doubt."""
    size = len(self._passages)
    count = min(size, kept(k, more))
    states, longest = self._pass(
        queries,
        lambda size: run.no_best(size, count),
        lambda state, block, _, *rest: run.update_best(state, block, *rest),
    )
    values, rows = self._merged(states, len(queries))
    bounds = error_bounds(queries, run.epsilon)
    limits = values[:, k - 1] - 2 * longest * bounds
    candidates = np.where(values >= limits[:, None], rows, -1)
    scores = self._of_candidates(queries, candidates, values)
    undecided = np.flatnonzero((count < size) & (values[:, -1] >= limits))
    return best_hits(scores, candidates, self._ids, k), undecided

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
        count, -1 for none; see `ranking.without`.

    Returns:
      int64 [Q], counted from 1; 0 for a query without a relevant passage here.
    """
    queries = self._checked(queries)
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
    scores = ranking_lib.of_candidates(queries, self._passages, rows)
    best = best_hits(scores, rows, self._ids, 1)
    above = self._hits_above(queries, best)
    if self_hits is not None:
      own = np.asarray(self_hits, np.int64)[has_gold]
      pairs = np.stack([best.indices[:, 0], own], axis=1)
      scores = ranking_lib.of_candidates(queries, self._passages, pairs)
      first = best_hits(scores, pairs, self._ids, 1).indices[:, 0]
      above -= (own >= 0) & (first == own)
    ranks[has_gold] = above + 1
    return ranks

  def _hits_above(self, queries: np.ndarray, gold: Ranking) -> np.ndarray:
    """The number of passages ranked above gold [Q, 1]: int64 [Q]."""
    targets, own = gold.scores[:, 0], gold.indices[:, 0]
    above, undecided = self._count_above(queries, targets, own, self._programs)
    if len(undecided) and self._wide:
      above[undecided], still = self._count_above(
          queries[undecided], targets[undecided], own[undecided], self._wide
      )
      undecided = undecided[still]
    if len(undecided):
      _log_undecided(len(undecided), len(queries))
      above[undecided] = ranking_lib.hits_above(
          queries[undecided], self._passages, self._ids, own[undecided],
          targets[undecided],
      )
    return above

  def _count_above(
      self, queries: np.ndarray, targets: np.ndarray, own: np.ndarray,
      run: Programs,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Hits above `targets` [Q], scores of passages `own`; queries in doubt."""
    size = len(self._passages)
    count = min(size, _NEAR)
    states, _ = self._pass(
        queries,
        lambda size: run.none_near(size, count),
        lambda state, block, longest, queries, quantiser, start, rows, *rest: (
            run.update_near(
                state, block, queries, quantiser, start, rows, longest, *rest
            )
        ),
        targets,
        error_bounds(queries, run.epsilon),
    )
    above = np.concatenate([run.total(state.above) for state in states])
    above = above[: len(queries)].astype(np.int64)
    values, rows = self._merged([state.best for state in states], len(queries))
    candidates = np.where(values > -np.inf, rows, -1)
    scores = ranking_lib.of_candidates(queries, self._passages, candidates)
    above += np.sum(scores > targets[:, None], axis=1)
    ties = (scores == targets[:, None]) & (candidates != own[:, None])
    for i, column in zip(*np.nonzero(ties)):
      above[i] += self._ids[int(candidates[i, column])] > self._ids[int(own[i])]
    return above, np.flatnonzero((count < size) & (values[:, -1] > -np.inf))

  def _pass(
      self, queries: np.ndarray, start: Callable[[int], Any],
      update: Callable[..., Any], *per_query: np.ndarray,
  ) -> tuple[list[Any], float]:
    """Runs a program over all blocks for all queries, float32 [Q, D].

    `start` makes the state of so many queries; `update` is (state, block, its
    longest, queries, quantiser, its first row, rows that count, *per_query [Q])
    -> state. Returns the states of the parts of the queries, which end with
    some of padding, and the greatest norm of a passage.
    """
    parts = [
        [jax.device_put(x, self._programs.replicated) for x in part]
        for part in self._parts(queries, *per_query)
    ]
    states = [start(len(part[0])) for part in parts]
    quantiser = jax.device_put(self._quantiser, self._programs.replicated)
    longest = []
    in_flight: collections.deque[Any] = collections.deque()
    size, is_long = len(self._passages), len(parts) > 1
    with _progress(size, is_long) as progress:
      for block, first, count in self._blocks:
        longest.append(self._longest(block))
        for i, (part, *rest) in enumerate(parts):
          states[i] = update(
              states[i], block, longest[-1], part, quantiser, first, count,
              *rest,
          )
          in_flight.append(states[i])
          if len(in_flight) > _IN_FLIGHT:
            self._programs.wait(in_flight.popleft())
        progress(min(len(block), size - int(first)))
    norms = np.array(jax.device_get(longest))
    if not np.isfinite(norms).all():
      finite.check_rows('passage embeddings', self._passages)
    return states, float(norms.max())

  def _longest(self, block: jax.Array) -> Any:
    """An upper bound of the norms of a block."""
    bound = getattr(self._quantiser, 'norm_bound', None)
    if bound is None:
      return self._programs.longest(block)
    return np.float32(bound * (1 + 2.0**-23))

  def _of_candidates(
      self, queries: np.ndarray, candidates: np.ndarray, found: np.ndarray
  ) -> np.ndarray:
    """Exact scores of candidates, float32 [Q, C]; `found` are the devices'."""
    if self._quantiser is not None and self._quantiser.is_exact:
      return np.where(candidates >= 0, found, -np.inf)
    return ranking_lib.of_candidates(queries, self._passages, candidates)

  def _parts(self, *per_query: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Arrays of Q rows in parts of few sizes, the last filled up with zeros."""
    total = len(per_query[0])
    for first in range(0, total, self._query_rows):
      count = min(self._query_rows, total - first)
      size = min(self._query_rows, _few_sizes(count))
      yield [
          np.concatenate([
              x[first : first + count],
              np.zeros((size - count, *x.shape[1:]), np.float32),
          ])
          for x in per_query
      ]

  def _merged(
      self, states: Sequence[search_programs.Best], count: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """The best of all devices, values and rows (int64) of `count` queries."""
    merged = [jax.device_get(self._programs.merge(state)) for state in states]
    values, rows = map(np.concatenate, zip(*merged))
    return values[:count], rows[:count].astype(np.int64)

  def _checked(self, queries: np.ndarray) -> np.ndarray:
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
    return queries if self._codec is None else self._codec.queries(queries)


def query_rows(rows: int, on_cpu: bool = False) -> int:
  """The number of queries to score at once with blocks of so many rows."""
  scores = _SCORES_ON_CPU if on_cpu else _SCORES
  return max(1, scores // (4 * rows))


def kept(k: int, more: int = 1) -> int:
  """The number of hits that devices keep, so that the k best are among them."""
  return k + more * (k // 4 + 32)


def error_bounds(queries: np.ndarray, epsilon: float) -> np.ndarray:
  """Rounding errors float32 [Q] of a score per unit of the passage's norm.

  A dot product of D terms, in whatever order, is off by at most about D epsilon
  |q| |p|, where epsilon is 2^-24 of float32, 2^-53 of float64. The bound is
  twice that, for the rounding of the norms and of products in three bfloat16
  parts, plus the rounding of scores to float32. Devices may take what is below
  2^-126 for zero, which `LEAST_NORM` more on either norm covers.
  """
  norms = np.linalg.norm(queries.astype(np.float64), axis=1)
  norms += search_programs.LEAST_NORM
  terms = 2 * (queries.shape[1] + 4)
  return (norms * (terms * epsilon + 1.5 * 2.0**-24)).astype(np.float32)


def _few_sizes(count: int) -> int:
  """A power of two, or three quarters of one, that is not below `count`."""
  power = search_programs.power_of_two(count)
  less = 3 * power // 4
  return less if power >= 4 and count <= less else power


def _log_undecided(undecided: int, queries: int) -> None:
  _LOG.info(
      '%d of %d queries have too many passages of nearly one score; they are'
      ' ranked in float64 on the host.',
      undecided,
      queries,
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
