"""The vectors of a sample by one model."""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.evaluation.analysis.geometry import (
  similarity_ratios,
  unit_rows,
)
from dualenc_jax.evaluation.analysis.sample import Sample
from dualenc_jax.retrieval.encoding.towers import Towers
from dualenc_jax.retrieval.search import ranking as ranking_lib
from dualenc_jax.retrieval.search.exact_search import ExactSearch
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError

# PAIR looks at so many passages of a query.
_RETRIEVED = 100


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
    ratios: float64 [any], `similarity_ratios` of queries and positives; none
      where the sample has too few pairs.
  """

  queries: np.ndarray
  passages: np.ndarray
  positives: np.ndarray
  top_cosines: np.ndarray
  negative_cosines: np.ndarray
  ratios: np.ndarray


def embed(
    name: str, embedder: Towers, params: Any, sample: Sample, encoded: Any,
    retrieved: int = _RETRIEVED,
) -> Vectors:
  """Embeds the queries of a sample, searches, and takes its passages' vectors.

  Args:
    name: of the model, for errors.
    embedder: its towers.
    params: its parameters.
    sample: what to embed.
    encoded: the vectors of the passages that are searched, [M, D], in memory
      or on disk: only blocks and the sample's rows of them are read.
    retrieved: the hits among which negatives are looked for.

  Raises:
    UserError: vectors that are not finite, or zero.
  """
  retrieval_set, searched = sample.retrieval_set, sample.searched
  searched_ids = retrieval_set.corpus.subset(searched).ids
  rows = retrieval_set.query_rows[sample.queries]
  queries = embedder.queries(params, retrieval_set.cache.query_tokens, rows)
  _check(name, 'queries', queries, sample.query_id)

  def take(side: str, places: np.ndarray) -> np.ndarray:
    found = np.asarray(encoded[places])
    _check(name, side, found, lambda i: searched_ids[places[i]])
    return unit_rows(found)

  passages = take('passages', _find_places(searched, sample.passages))
  positives = take('passages', _find_places(searched, sample.pair_passages))
  # A query's self-hit, where the task has such, is left out.
  own = retrieval_set.self_hits
  count = min(retrieved + (own is not None), len(searched))
  ranking = ExactSearch(encoded, searched_ids).top_k(queries, count)
  if own is not None:
    own_places = _find_places(searched, own[sample.queries])
    ranking = ranking_lib.without(ranking, own_places)
  units, hits = unit_rows(queries), take('best hits', ranking.indices[:, 0])
  ratios = np.zeros(0)
  if sample.has_pairs:
    paired = units[sample.pair_queries]
    ratios = similarity_ratios(paired, positives, seed=sample.seed)
  return Vectors(
      units,
      passages,
      positives,
      # Scores are products: of half precision's vectors, not quite cosines.
      np.sum(units * hits, axis=1),
      _measure_negatives(positives, ranking, encoded, sample),
      ratios,
  )


def _measure_negatives(
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


def _find_places(searched: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Where rows of the corpus stand among those searched; -1 for not at all."""
  places = np.minimum(np.searchsorted(searched, rows), len(searched) - 1)
  return np.where(searched[places] == rows, places, -1)


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
