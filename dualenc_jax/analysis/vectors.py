"""The vectors that one model gives a sample."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.analysis import dims as dims_lib, geometry
from dualenc_jax.analysis.sample import Sample
from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.io import finite
from dualenc_jax.search import ranking as ranking_lib
from dualenc_jax.search.exact_search import ExactSearch
from dualenc_jax.search.ranking import Ranking

# PAIR looks at so many passages of a query.
_RETRIEVED = 100

@dataclasses.dataclass(frozen=True)
class Vectors:
  """Unit vectors of a sample, and how near its queries' best hits are.

  Attributes:
    name: of the model.
    queries: float32 [n, D].
    passages: float32 [m, D].
    positives: float32 [p, D], of the sample's `pair_passages`.
    top_cosines: float32 [n], of each query with its nearest passage of those
      searched.
    negative_cosines: float64 [p], of each of the positives the mean over the
      query's 100 best hits that are not relevant; NaN for none.
    ranks: int64 [at most n], of the first queries' best relevant passages among
      those searched, from 1; 0 for none.
    mrr: by dim, see `dims.mrr`.
  """

  name: str
  queries: np.ndarray
  passages: np.ndarray
  positives: np.ndarray
  top_cosines: np.ndarray
  negative_cosines: np.ndarray
  ranks: np.ndarray
  mrr: Mapping[int, float] = dataclasses.field(default_factory=dict)


def embed(
    name: str,
    embedder: Embedder,
    params: Any,
    sample: Sample,
    encoded: Any,
    ranked: int = 0,
    dims: Sequence[int] = (),
) -> Vectors:
  """Embeds the queries of a sample, searches, and takes its passages' vectors.

  Args:
    name: of the model.
    embedder: its towers.
    params: its parameters.
    sample: what to embed.
    encoded: the vectors of the passages that are searched, [M, D], in memory
      or on disk: only blocks and the sample's rows of them are read.
    ranked: how many queries, the first ones, need the rank of their relevant
      passage.
    dims: of how many first components the quality is measured, where queries
      have relevant passages.

  Raises:
    UserError: vectors that are not finite, or zero.
  """
  retrieval_set = sample.retrieval_set
  corpus = retrieval_set.corpus
  queries = embedder.queries(
      params, retrieval_set.cache.query_tokens, sample.query_rows()
  )
  _check(name, 'queries', queries, sample.query_id)
  searched = sample.searched
  taken = np.asarray(encoded[_position(searched, sample.passages)])
  _check(name, 'passages', taken, sample.passage_id)
  positives = np.asarray(encoded[_position(searched, sample.pair_passages)])
  of_pairs = sample.pair_passages
  _check(name, 'passages', positives, lambda i: corpus.ids[of_pairs[i]])
  ranking, ranks = _search(queries, encoded, sample, ranked)
  best = ranking.indices[:, 0]
  hits = np.asarray(encoded[best])
  _check(name, 'best hits', hits, lambda i: corpus.ids[searched[best[i]]])
  units = geometry.unit_rows(queries)
  positives = geometry.unit_rows(positives)
  return Vectors(
      name,
      units,
      geometry.unit_rows(taken),
      positives,
      # Scores are products: of half precision's vectors, not quite cosines.
      np.sum(units * geometry.unit_rows(hits), axis=1),
      _to_negatives(positives, ranking, encoded, sample),
      ranks,
      _mrr(queries, encoded, sample, dims) if sample.has_pairs else {},
  )


def _search(
    queries: np.ndarray, encoded: Any, sample: Sample, ranked: int
) -> tuple[Ranking, np.ndarray]:
  """The best hits, of those searched, and the first queries' ranks.

  A query's self-hit, where the task has such, is left out.
  """
  retrieval_set, searched = sample.retrieval_set, sample.searched
  search = ExactSearch(encoded, retrieval_set.corpus.subset(searched).ids)
  own = _self_hits(sample)
  depth = _RETRIEVED if own is None else _RETRIEVED + 1
  ranking = search.top_k(queries, min(depth, len(searched)))
  if own is not None:
    ranking = ranking_lib.without(ranking, own)
  if not ranked:
    return ranking, np.zeros(0, np.int64)
  own = None if own is None else own[:ranked]
  gold = _gold(sample)[:ranked]
  return ranking, search.gold_ranks(queries[:ranked], gold, own)


def _mrr(
    queries: np.ndarray, encoded: Any, sample: Sample, dims: Sequence[int]
) -> dict[int, float]:
  ids = sample.retrieval_set.corpus.subset(sample.searched).ids
  own = _self_hits(sample)
  return dims_lib.mrr(queries, encoded, ids, _gold(sample), own, dims)


def _gold(sample: Sample) -> list[list[int]]:
  """For each query its relevant passages, by place among those searched."""
  searched = sample.searched
  return [
      [int(i) for i in _position(searched, np.array(rows, np.int64)) if i >= 0]
      for rows in sample.gold
  ]


def _self_hits(sample: Sample) -> np.ndarray | None:
  """For each query its self-hit, by place likewise; None if there are none."""
  own = sample.retrieval_set.self_hits
  return None if own is None else _position(
      sample.searched, own[sample.queries]
  )


def _to_negatives(
    positives: np.ndarray, ranking: Ranking, encoded: Any, sample: Sample
) -> np.ndarray:
  """The mean cosine of each positive [p, D] with hits that are not relevant."""
  out = np.full(len(positives), np.nan)
  for place, query in enumerate(sample.pair_queries.tolist()):
    hits = ranking.indices[query]
    relevant = np.isin(sample.searched[hits], sample.gold[query])
    # Without self-hits some have no place.
    negatives = hits[~relevant & (hits >= 0)]
    if len(negatives):
      units = geometry.unit_rows(np.asarray(encoded[negatives]))
      out[place] = np.mean(units @ positives[place], dtype=np.float64)
  return out


def _position(searched: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Where rows of the corpus stand among those searched; -1 for not at all."""
  position = np.searchsorted(searched, rows)
  position = np.minimum(position, len(searched) - 1)
  return np.where(searched[position] == rows, position, -1)


def _check(
    name: str, side: str, vectors: np.ndarray, id_of: Callable[[int], str]
) -> None:
  """Raises UserError unless every row is finite and has a length."""
  what = f'Model {name}, {side}: the vectors'
  finite.check_rows(what, vectors, lambda row: repr(id_of(row)))
  zero = np.flatnonzero(~vectors.any(axis=1)).tolist()
  if zero:
    raise UserError(
        f'{what} of {id_of(zero[0])!r} and {len(zero) - 1:,} others are zero.'
        ' Look at the checkpoint and at these texts.'
    )
