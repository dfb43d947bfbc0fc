"""The vectors of a sample by one model."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.analysis.geometry import unit_rows
from dualenc_jax.analysis.sample import Sample
from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import Towers
from dualenc_jax.io import finite
from dualenc_jax.search import ranking as ranking_lib
from dualenc_jax.search.exact_search import ExactSearch
from dualenc_jax.search.ranking import Ranking

# PAIR looks at so many passages of a query.
_RETRIEVED = 100
_LEAST, _HALVINGS = 8, 6


@dataclasses.dataclass(frozen=True)
class Vectors:
  """Unit vectors of a sample, and how near its queries' best hits are.

  Attributes:
    queries: float32 [n, D].
    passages: float32 [m, D].
    positives: float32 [p, D], of the sample's `pair_passages`.
    top_cosines: float32 [n], of each query with its nearest passage of those
      searched.
    negative_cosines: float64 [p], of each of the positives the mean over the
      query's 100 best hits that are not relevant; NaN for none.
    ranks: int64 [at most n], of the first queries' best relevant passages among
      those searched, from 1; 0 for none.
    mrr: mean reciprocal ranks of queries with relevant passages, by how many
      first components of the vectors are left.
  """

  queries: np.ndarray
  passages: np.ndarray
  positives: np.ndarray
  top_cosines: np.ndarray
  negative_cosines: np.ndarray
  ranks: np.ndarray
  mrr: Mapping[int, float]

  def first(self, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first queries, and as many passages."""
    return self.queries[:most], self.passages[:most]


@dataclasses.dataclass(frozen=True)
class FirstComponents:
  """A store of rows [N, D] as one of [N, dim], of length one; keeps nothing."""

  rows: Any
  dim: int
  dtype = np.dtype(np.float32)

  @property
  def shape(self) -> tuple[int, int]:
    return len(self.rows), self.dim

  def __len__(self) -> int:
    return len(self.rows)

  def __getitem__(self, key: Any) -> np.ndarray:
    return unit_rows(np.asarray(self.rows[key])[:, : self.dim])


def default_dims(dim: int, trained_dims: Sequence[int] = ()) -> list[int]:
  """D and its halves, and what the model was trained for, largest first."""
  halves = [dim // 2**i for i in range(_HALVINGS)]
  found = {d for d in halves if d >= _LEAST} | {*trained_dims, dim}
  return sorted(found, reverse=True)


def embed(
    name: str, embedder: Towers, params: Any, sample: Sample, encoded: Any,
    ranked: int = 0, dims: Sequence[int] = (), retrieved: int = _RETRIEVED,
) -> Vectors:
  """Embeds the queries of a sample, searches, and takes its passages' vectors.

  Args:
    name: of the model, for errors.
    embedder: its towers.
    params: its parameters.
    sample: what to embed.
    encoded: the vectors of the passages that are searched, [M, D], in memory
      or on disk: only blocks and the sample's rows of them are read.
    ranked: how many queries, the first ones, need ranks.
    dims: for `mrr`.
    retrieved: the hits among which negatives are looked for.

  Raises:
    UserError: vectors that are not finite, or zero.
  """
  retrieval_set, searched = sample.retrieval_set, sample.searched
  ids = retrieval_set.corpus.ids
  rows = retrieval_set.query_rows[sample.queries]
  queries = embedder.queries(params, retrieval_set.cache.query_tokens, rows)
  _check(name, 'queries', queries, sample.query_id)

  def taken(side: str, places: np.ndarray) -> np.ndarray:
    found = np.asarray(encoded[places])
    _check(name, side, found, lambda i: ids[searched[places[i]]])
    return unit_rows(found)

  passages = taken('passages', _position(searched, sample.passages))
  positives = taken('passages', _position(searched, sample.pair_passages))
  # A query's self-hit, where the task has such, is left out.
  own = retrieval_set.self_hits
  if own is not None:
    own = _position(searched, own[sample.queries])
  searched_ids = retrieval_set.corpus.subset(searched).ids
  search = ExactSearch(encoded, searched_ids)
  more = 0 if own is None else 1
  ranking = search.top_k(queries, min(retrieved + more, len(searched)))
  if own is not None:
    ranking = ranking_lib.without(ranking, own)
  hits = taken('best hits', ranking.indices[:, 0])
  positions = [_position(searched, np.array(g, np.int64)) for g in sample.gold]
  gold = [places[places >= 0].tolist() for places in positions]

  def gold_ranks(search: ExactSearch, queries: Any, rows: Any) -> np.ndarray:
    self_hits = None if own is None else own[rows]
    return search.gold_ranks(
        queries[rows], [gold[row] for row in rows], self_hits
    )

  first = np.arange(min(ranked, len(queries)))
  judged = np.flatnonzero([len(places) for places in gold])
  mrr = {}
  for dim in dims if sample.has_pairs else ():
    cut = ExactSearch(FirstComponents(encoded, dim), searched_ids)
    ranks = gold_ranks(cut, FirstComponents(queries, dim), judged)
    mrr[dim] = float(np.mean(1 / ranks))
  units = unit_rows(queries)
  return Vectors(
      units,
      passages,
      positives,
      # Scores are products: of half precision's vectors, not quite cosines.
      np.sum(units * hits, axis=1),
      _to_negatives(positives, ranking, encoded, sample),
      gold_ranks(search, queries, first) if ranked else first,
      mrr,
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
      units = unit_rows(np.asarray(encoded[negatives]))
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
        ' Check the checkpoint and these texts.'
    )
