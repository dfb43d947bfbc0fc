"""The evaluation of a system on a retrieval set: a ranking and metrics.

A system is a model, scores of the whole corpus, or hits that are re-ranked.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation import answer_match, max_passage, metrics, trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.compression import Codec, Coded
from dualenc_jax.retrieval.encoding.towers import Towers
from dualenc_jax.retrieval.search import ranking as ranking_lib
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.retrieval.search.ranking import (
  concatenate,
  id_places,
  rank_candidates,
  rank_scores,
  Ranking,
)
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
  """A ranking and its metrics.

  Attributes:
    ranking: the hits of each query of the set.
    scores: metrics of the queries with judged passages, and matches by
      `answer_match.top_k_matches` of those that have answers alone.
  """

  ranking: Ranking
  scores: metrics.Scores

  @property
  def ranks(self) -> dict[int, int]:
    """The rank of each query's best relevant passage, where it is known."""
    if 'MRR' not in self.scores.values:
      return {}
    known = self.scores.column('MRR')
    return {query: round(1 / value) for query, value in known.items() if value}

  @property
  def metrics(self) -> dict[str, float]:
    """Means of the metrics by name."""
    return self.scores.means()


def evaluate(
    embedder: Towers, params: Any, retrieval_set: RetrievalSet, k: int = 1000,
    codec: Codec | None = None,
) -> Evaluation:
  """Encodes queries and corpus, and ranks the corpus exactly for every query.

  It keeps k hits a query, at least 100 where the corpus has so many. The
  embeddings of the corpus, or codes, are in memory, 4 D bytes a passage.
  """
  corpus = retrieval_set.corpus
  passages: Any = embedder.passages(
      params, corpus.cache.passage_tokens, corpus.rows
  )
  if codec is not None:
    passages = Coded(codec, codec.encode(passages))
  queries = encode_queries(embedder, params, retrieval_set)
  return rank(queries, passages, retrieval_set, k)


def encode_queries(
    embedder: Towers, params: Any, retrieval_set: RetrievalSet
) -> np.ndarray:
  """Embeddings of queries, float32 [Q, D]; UserError if not finite."""
  tokens, rows = retrieval_set.cache.query_tokens, retrieval_set.query_rows
  queries = np.empty((len(rows), embedder.dim), np.float32)
  with Progress('Encoding', len(rows), 'queries') as progress:
    for places, batch in embedder.batches('encode_query', params, tokens, rows):
      queries[places] = batch
      progress(len(places))
  ids = retrieval_set.query_ids
  finite.check_rows('query embeddings', queries, lambda row: repr(ids[row]))
  return queries


def rank(
    queries: np.ndarray, passages: Any, retrieval_set: RetrievalSet,
    k: int = 1000,
) -> Evaluation:
  """Ranks a whole corpus exactly for every query.

  Args:
    queries: float32 [Q, D].
    passages: [N, D] of the corpus in its order, in memory or on disk, or codes
      of them.
    retrieval_set: the set of the queries and the corpus.
    k: hits a query, at least 100 where there are so many.
  """
  search = make_search(passages, retrieval_set.corpus.ids)
  return rank_by(search, queries, retrieval_set, k)


def rank_by(
    search: Any, queries: np.ndarray, retrieval_set: RetrievalSet, k: int
) -> Evaluation:
  """Ranks the set's passages by a search with `top_k` and `gold_ranks`.

  Other arguments are those of `rank`.
  """
  documents = retrieval_set.documents

  def hits(count: int) -> Ranking:
    if documents is None:
      return search.top_k(queries, count)
    return max_passage.top_k_documents(
        lambda chosen, depth: search.top_k(queries[chosen], depth),
        len(queries),
        documents.of_passage,
        count,
    )

  self_hits = retrieval_set.self_hits
  if self_hits is None:
    ranking = hits(k)
  else:
    ranking = ranking_lib.drop_self_hits(hits(k + 1), self_hits)
  if documents is not None:
    return score(ranking, retrieval_set)
  gold = retrieval_set.gold
  ranks = _ranks_in(ranking, gold)
  lost = [q for q, rank in enumerate(ranks) if gold[q] and not rank]
  if lost:
    ranks[lost] = search.gold_ranks(
        queries[lost],
        [gold[q] for q in lost],
        None if self_hits is None else self_hits[lost],
    )
  return score(ranking, retrieval_set, ranks)


def rank_by_scores(
    scores: Iterable[Sequence[np.ndarray]], retrieval_set: RetrievalSet,
    k: int = 1000,
) -> list[Evaluation]:
  """Ranks a whole corpus for every query, by one system or several at once.

  Args:
    scores: for each query those of each system, float32 [N]; -inf for passages
      that it does not retrieve, which are no hits and have no rank.
    retrieval_set: the set of the queries and the corpus.
    k: hits a query, at least 100 where there are so many.
  """
  ids = retrieval_set.ranked_ids
  places = id_places(ids)
  size = len(ids) - (retrieval_set.self_hits is not None)
  ranked: list[list[tuple[Ranking, int]]] = []
  for query, (gold, systems) in enumerate(zip(retrieval_set.gold, scores)):
    ranked.append([])
    for each in systems:
      each = scores_of_ranked(each, retrieval_set, query)
      hits = rank_scores(each, places, min(k, size))
      ranked[-1].append((hits, rank_of_best(each, gold, places)))
  return [
      score(
          concatenate([hits for hits, _ in system]),
          retrieval_set,
          np.array([rank for _, rank in system], np.int64),
      )
      for system in zip(*ranked)
  ]


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


def scores_of_ranked(
    scores: np.ndarray, retrieval_set: RetrievalSet, query: int
) -> np.ndarray:
  """Scores of the passages, or documents, without the query itself."""
  documents, self_hits = retrieval_set.documents, retrieval_set.self_hits
  if documents is not None:
    best = np.full(len(documents.ids), -np.inf, np.float32)
    np.maximum.at(best, documents.of_passage, scores)
    scores = best
  if self_hits is not None and self_hits[query] >= 0:
    scores = scores.copy()
    scores[self_hits[query]] = -np.inf
  return scores


def rank_run(
    run: trec.Run, retrieval_set: RetrievalSet, path: pathlib.Path
) -> Evaluation:
  """The hits of a run over the set's corpus, as trec_eval orders them.

  Its metrics are those of the run: a relevant passage beyond the hits counts as
  not found. Queries may be missing. Raises UserError for unknown ids.
  """
  ids = retrieval_set.ranked_ids
  queries, passages = trec.numbers(run, retrieval_set.query_ids, ids, path)
  depth = max(min(metrics.DEEPEST_RECALL, len(ids)), *map(len, run.values()))
  shape = len(retrieval_set.query_ids), depth
  indices = np.full(shape, -1, np.int64)
  scores = np.full(shape, -np.inf, np.float32)
  for query, hits in run.items():
    best = ranking_lib.sort_hits(hits)
    indices[queries[query], : len(best)] = [passages[hit] for hit in best]
    scores[queries[query], : len(best)] = [hits[hit] for hit in best]
  ranking = Ranking(scores, indices)
  return score(ranking, retrieval_set, _ranks_in(ranking, retrieval_set.gold))


def rerank(
    first: Evaluation, retrieval_set: RetrievalSet,
    score_pairs: Callable[[np.ndarray], np.ndarray], depth: int,
) -> Evaluation:
  """Re-ranks the `depth` best hits of each query; the others stay below.

  `score_pairs` scores pairs int64 [n, 2], numbers of a query and a passage.

  Raises:
    UserError: documents were ranked, or a score is not finite.
  """
  if retrieval_set.documents is not None:
    raise UserError(
        'A re-ranker scores passages, not documents: leave out --max_passage or'
        ' the re-ranking.'
    )
  ranking = rerank_hits(
      first.ranking, score_pairs, retrieval_set.ranked_ids, depth,
      retrieval_set.query_ids,
  )
  ranks = _ranks_in(ranking, retrieval_set.gold)
  for query, rank in first.ranks.items():
    # Ranks beyond the hits do not change.
    ranks[query] = ranks[query] or rank
  return score(ranking, retrieval_set, ranks)


def rerank_hits(
    first: Ranking, score_pairs: Callable[[np.ndarray], np.ndarray],
    ids: Sequence[str], depth: int, query_ids: list[str],
) -> Ranking:
  """The same hits [Q, k], with the first `depth` of each query by new scores.

  Scores of the hits below fall by one each from the lowest new score.
  """
  count, k = first.indices.shape
  depth = min(depth, k)
  taken = first.indices[:, :depth]
  real = taken >= 0
  scores = np.zeros((count, depth), np.float32)
  scores[real] = score_pairs(np.stack([np.nonzero(real)[0], taken[real]], 1))
  finite.check_rows("the teacher's scores", scores, lambda q: query_ids[q])
  best = rank_candidates(np.where(real, scores, -np.inf), taken, ids, depth)
  below = best.scores[:, -1:] - np.arange(1, k - depth + 1, dtype=np.float32)
  below[first.indices[:, depth:] < 0] = -np.inf
  return Ranking(
      np.concatenate([best.scores, below], axis=1),
      np.concatenate([best.indices, first.indices[:, depth:]], axis=1),
  )


def score(
    ranking: Ranking,
    retrieval_set: RetrievalSet,
    ranks: np.ndarray | None = None,
) -> Evaluation:
  """The metrics of a ranking [Q, k], k at least 100 or all there are.

  It needs the ranks of the best relevant passages if the ranking is cut off,
  and raises the errors of `metrics.score`.
  """
  left_out = retrieval_set.self_hits is not None
  size = len(retrieval_set.ranked_ids) - left_out
  answered = np.flatnonzero([bool(a) for a in retrieval_set.answers])
  asked = retrieval_set.more_metrics
  of_answers = [name for name in asked if metrics.parse(name).is_of_answers]
  scores = metrics.Scores(np.zeros(0, np.int64), {})
  if any(retrieval_set.judgements) or not len(answered):
    scores = metrics.score(
        ranking, retrieval_set.judgements, size, ranks,
        retrieval_set.relevance_level,
        [name for name in asked if name not in of_answers],
    )
  if len(answered):
    names = [*(f'Top-{k}' for k in answer_match.TOP_K), *of_answers]
    metrics.check_depth(ranking.indices.shape[1], size, names)
    corpus = retrieval_set.corpus
    matches = answer_match.top_k_matches(
        ranking.indices[answered],
        [retrieval_set.answers[q] for q in answered],
        lambda i: retrieval_set.answer_text(corpus.texts[i], corpus.name(i)),
        [metrics.parse(name).cut for name in names],
    )
    scores = scores.joined(metrics.Scores(answered, matches))
  return Evaluation(ranking, scores)


def _ranks_in(ranking: Ranking, gold: list[list[int]]) -> np.ndarray:
  """The rank of each query's best relevant hit, int64 [Q]; 0 for none."""
  ranks = np.zeros(len(gold), np.int64)
  for query, relevant in enumerate(gold):
    is_gold = np.isin(ranking.indices[query], relevant)
    ranks[query] = is_gold.argmax() + 1 if is_gold.any() else 0
  return ranks
