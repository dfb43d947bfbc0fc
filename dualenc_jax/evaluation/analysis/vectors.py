"""A sample of queries and passages, and their vectors by one model."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.data.corpus import describe
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.encoding.towers import Towers
from dualenc_jax.retrieval.search import ranking as ranking_lib
from dualenc_jax.retrieval.search.exact_search import ExactSearch
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError

# PAIR looks at so many hits of a query.
_RETRIEVED = 100
DRAWS = 50_000
_BLOCK = 1024
# Ratios with a smaller denominator are noise.
_TINY = 1e-6
# Fewer texts do not make a map, nor folds to classify in.
FEWEST = 10


@dataclasses.dataclass(frozen=True)
class Sample:
  """Rows of a retrieval set; a prefix of the queries is a sample, too.

  Attributes:
    retrieval_set: the set that the rows are from.
    seed: seed of the draws.
    queries: int64 [n], the set's queries in random order.
    passages: int64 [m], rows of the corpus in random order.
    gold: for each of the n queries its relevant passages, rows of the corpus.
    pair_queries: int64 [p], positions in `queries` of those with a relevant
      passage.
    pair_passages: int64 [p], one of them for each, rows of the corpus.
  """

  retrieval_set: RetrievalSet
  seed: int
  queries: np.ndarray
  passages: np.ndarray
  gold: Sequence[Sequence[int]]
  pair_queries: np.ndarray
  pair_passages: np.ndarray

  @property
  def has_pairs(self) -> bool:
    """Whether there are enough positive pairs for numbers of them."""
    return len(self.pair_queries) >= FEWEST

  def query_id(self, position: int) -> str:
    return self.retrieval_set.query_ids[self.queries[position]]

  def passage_id(self, position: int) -> str:
    return self.retrieval_set.corpus.ids[self.passages[position]]


def draw(retrieval_set: RetrievalSet, size: int, seed: int = 0) -> Sample:
  """Draws at most `size` queries and as many passages, any of the corpus.

  The sample depends only on the data and the arguments, not on a model.

  Raises:
    UserError: fewer than `FEWEST` queries or passages.
  """
  rng = np.random.default_rng(seed)
  count, all_gold = len(retrieval_set.corpus), retrieval_set.gold
  queries = rng.permutation(len(all_gold))[:size]
  gold = [all_gold[q] for q in queries]
  pair_queries = np.flatnonzero([len(rows) for rows in gold])
  pair_passages = np.array(
      [rng.choice(gold[q]) for q in pair_queries], np.int64
  )
  passages = rng.choice(count, min(size, count), replace=False)
  for what, rows in (('queries', queries), ('passages', passages)):
    if len(rows) < FEWEST:
      raise UserError(
          f'{describe(retrieval_set.cache)} has {len(rows)} {what}; expected'
          f' at least {FEWEST} to look at the embedding space. Take a larger'
          ' split.'
      )
  return Sample(
      retrieval_set, seed, queries, passages, gold, pair_queries, pair_passages
  )


@dataclasses.dataclass(frozen=True)
class Vectors:
  """Unit vectors of a sample, and cosines of its queries' hits.

  Attributes:
    queries: float32 [n, D].
    passages: float32 [m, D].
    positives: float32 [p, D], of the sample's `pair_passages`.
    top_cosines: float32 [n], each query's with the nearest passage.
    negative_cosines: float64 [p], each positive's mean cosine with the query's
      100 best hits that are not relevant; NaN where there are none.
    ratios: float64 [any], `similarity_ratios` of queries and positives; empty
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
  """Embeds a sample's queries, searches, and reads its passages' vectors.

  Blocks and the sample's rows are read of `encoded`, the vectors of the corpus
  [N, D], in memory or on disk. Negatives are among the `retrieved` best hits.

  Raises:
    UserError: vectors that are not finite, or zero; it has the model's name.
  """
  retrieval_set = sample.retrieval_set
  ids = retrieval_set.corpus.ids
  rows = retrieval_set.query_rows[sample.queries]
  queries = embedder.queries(params, retrieval_set.cache.query_tokens, rows)
  _check(name, 'queries', queries, sample.query_id)

  def take(side: str, rows: np.ndarray) -> np.ndarray:
    taken = np.asarray(encoded[rows])
    _check(name, side, taken, lambda i: ids[rows[i]])
    return unit_rows(taken)

  passages = take('passages', sample.passages)
  positives = take('passages', sample.pair_passages)
  self_hits = retrieval_set.self_hits
  count = min(retrieved + (self_hits is not None), len(ids))
  ranking = ExactSearch(encoded, ids).top_k(queries, count)
  if self_hits is not None:
    own = self_hits[sample.queries]
    ranking = ranking_lib.drop_self_hits(ranking, own)
  units, hits = unit_rows(queries), take('best hits', ranking.indices[:, 0])
  ratios = np.zeros(0)
  if sample.has_pairs:
    paired = units[sample.pair_queries]
    ratios = similarity_ratios(paired, positives, seed=sample.seed)
  return Vectors(
      units,
      passages,
      positives,
      # Scores of half precision's vectors are not quite cosines.
      np.sum(units * hits, axis=1),
      _measure_negatives(positives, ranking, encoded, sample),
      ratios,
  )


def unit_rows(vectors: np.ndarray) -> np.ndarray:
  """Scales vectors [n, D] to length 1: float32 [n, D]; zero rows stay zero."""
  vectors = vectors.astype(np.float64)
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def similarity_ratios(
    queries: np.ndarray, passages: np.ndarray, draws: int = DRAWS, seed: int = 0
) -> np.ndarray:
  """Draws sim(q_i, q_j) / sim(q_i, p_j), i != j, as in SamToNe's figure 6.

  Queries and passages are unit vectors [n, D], n at least 2; p_j belongs to
  q_j. Pairs are drawn with replacement, and left out if the denominator is
  nearly 0.
  """
  rng = np.random.default_rng(seed)
  first = rng.integers(len(queries), size=draws)
  # A step of 1 to n - 1 in a circle never ends where it starts.
  second = (first + rng.integers(1, len(queries), size=draws)) % len(queries)
  values = []
  for start in range(0, draws, _BLOCK):
    i, j = first[start : start + _BLOCK], second[start : start + _BLOCK]
    anchors = queries[i].astype(np.float64)
    numerators = np.sum(anchors * queries[j], axis=1)
    denominators = np.sum(anchors * passages[j], axis=1)
    usable = np.abs(denominators) >= _TINY
    values.append(numerators[usable] / denominators[usable])
  return np.concatenate(values)


def share_within(values: np.ndarray, low: float, high: float) -> float:
  """The share of values [n] from `low` to `high`; NaN if n is 0."""
  inside = (values >= low) & (values <= high)
  return float(inside.mean()) if len(inside) else float('nan')


def _measure_negatives(
    positives: np.ndarray, ranking: Ranking, encoded: Any, sample: Sample
) -> np.ndarray:
  """The mean cosine of each positive [p, D] with hits that are not relevant."""
  out = np.full(len(positives), np.nan)
  for place, query in enumerate(sample.pair_queries.tolist()):
    hits = ranking.indices[query]
    relevant = np.isin(hits, sample.gold[query])
    # The places of self-hits are negative.
    negatives = hits[~relevant & (hits >= 0)]
    if len(negatives):
      units = unit_rows(np.asarray(encoded[negatives]))
      out[place] = np.mean(units @ positives[place], dtype=np.float64)
  return out


def _check(
    name: str, side: str, vectors: np.ndarray, id_of: Callable[[int], str]
) -> None:
  """Raises UserError unless every row is finite and not zero."""
  what = f'Model {name}, {side}: the vectors'
  finite.check_rows(what, vectors, lambda row: repr(id_of(row)))
  zero = np.flatnonzero(~vectors.any(axis=1)).tolist()
  if zero:
    raise UserError(
        f'{what} of {id_of(zero[0])!r} and {len(zero) - 1:,} others are zero.'
        ' Check the checkpoint and these texts.'
    )
