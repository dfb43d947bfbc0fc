"""Evaluation of a system that scores a whole corpus at once, on the host."""

from collections.abc import Iterable, Sequence
import math

import numpy as np

from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search import hybrid
from dualenc_jax.retrieval.search.hybrid import Hybrid
from dualenc_jax.retrieval.search.ranking import (
  best_of,
  id_places,
  joined,
  Ranking,
)
from dualenc_jax.utils.errors import UserError


def evaluate(
    scores: Iterable[Sequence[np.ndarray]], retrieval_set: RetrievalSet,
    k: int = 1000,
) -> list[Evaluation]:
  """Ranks a whole corpus for every query, by one system or several at once.

  Args:
    scores: of each query those of each system, float32 [N]; -inf for what it
      does not retrieve, which is no hit, and relevant or not of no rank.
    retrieval_set: the set of the queries and the corpus.
    k: hits a query, at least 100 where there are so many.
  """
  ids = retrieval_set.ranked_ids
  places = id_places(ids)
  size = len(ids) - (retrieval_set.self_hits is not None)
  found: list[list[tuple[Ranking, int]]] = []
  for query, (gold, several) in enumerate(zip(retrieval_set.gold, scores)):
    ranked = [_of_ranked(own, retrieval_set, query) for own in several]
    found.append([
        (best_of(own, places, min(k, size)), rank_of_best(own, gold, places))
        for own in ranked
    ])
  return [
      evaluation.score(
          joined([hits for hits, _ in system]),
          retrieval_set,
          np.array([rank for _, rank in system], np.int64),
      )
      for system in zip(*found)
  ]


def choose_weight(
    system: Hybrid, embeddings: np.ndarray, retrieval_set: RetrievalSet,
    most: int = 1000,
) -> float:
  """The share of the dense scores that has the highest MRR.

  Of the shares that are behind by a standard error of the difference, or less,
  it is the nearest to `hybrid.WEIGHT`, so that few queries do not decide much.

  Args:
    system: the scores of the set's corpus.
    embeddings: float32 [Q, D] of the set's queries.
    retrieval_set: a set other than the one that is measured.
    most: the most queries to look at.

  Raises:
    UserError: no query has a relevant passage.
  """
  places, gold = id_places(retrieval_set.ranked_ids), retrieval_set.gold
  chosen = [query for query, relevant in enumerate(gold) if relevant]
  if not chosen:
    raise UserError(
        'The weight of hybrid search cannot be chosen: no query of the'
        ' validation split has a relevant passage. Give a weight, such as'
        f' {hybrid.WEIGHT}.'
    )
  chosen = np.random.default_rng(0).permutation(chosen)[:most].tolist()
  reciprocal = np.zeros((len(chosen), len(hybrid.WEIGHTS)))
  texts = [retrieval_set.query_texts[query] for query in chosen]
  every = zip(chosen, system.both(texts, embeddings[chosen]))
  for row, (query, both) in enumerate(every):
    for i, scores in enumerate(hybrid.weighted(*both, hybrid.WEIGHTS)):
      scores = _of_ranked(scores, retrieval_set, query)
      rank = rank_of_best(scores, gold[query], places)
      reciprocal[row, i] = 1 / rank if rank else 0.0
  best = reciprocal.mean(axis=0).argmax()
  behind = reciprocal[:, [best]] - reciprocal
  error = behind.std(axis=0) / math.sqrt(len(chosen))
  near = np.flatnonzero(behind.mean(axis=0) <= error).tolist()
  return min(
      (hybrid.WEIGHTS[i] for i in near),
      key=lambda weight: abs(weight - hybrid.WEIGHT),
  )


def rank_of_best(
    scores: np.ndarray, gold: Sequence[int], places: np.ndarray
) -> int:
  """The rank, from 1, of the best row in `gold`; 0 if none is retrieved.

  Scores are float32 [N], places `ranking.id_places` [N].
  """
  if not gold:
    return 0
  rows = np.array(list(gold))
  best = scores[rows].max()
  if best == -np.inf:
    return 0
  place = places[rows[scores[rows] == best]].max()
  ties = (scores == best) & (places > place)
  return 1 + int(np.count_nonzero(scores > best) + np.count_nonzero(ties))


def _of_ranked(
    scores: np.ndarray, retrieval_set: RetrievalSet, query: int
) -> np.ndarray:
  """Scores of the passages, or documents, without the query itself."""
  documents, own = retrieval_set.documents, retrieval_set.self_hits
  if documents is not None:
    best = np.full(len(documents.ids), -np.inf, np.float32)
    np.maximum.at(best, documents.of_passage, scores)
    scores = best
  if own is not None and own[query] >= 0:
    scores = scores.copy()
    scores[own[query]] = -np.inf
  return scores
