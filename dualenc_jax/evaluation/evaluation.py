"""The evaluation of a model on a retrieval set: a ranking and metrics."""

import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.evaluation import answer_match, max_passage, metrics
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.compression import Codec, Coded
from dualenc_jax.retrieval.encoding.towers import Towers
from dualenc_jax.retrieval.search import ranking as ranking_lib
from dualenc_jax.retrieval.search.exact_search import search_of
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import finite
from dualenc_jax.utils.progress import Progress


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
  """A ranking and its metrics.

  Attributes:
    ranking: the hits of each query of the set.
    scores: scores of the queries with judged passages; None if all queries have
      answers alone.
    matches: float64 [A] by name, see `answer_match.top_k_matches`, of the
      queries that have answers alone.
    answered: int64 [A], numbers of these queries.
  """

  ranking: Ranking
  scores: metrics.Scores | None
  matches: dict[str, np.ndarray]
  answered: np.ndarray

  @property
  def ranks(self) -> dict[int, int]:
    """The rank of each query's best relevant passage; None if not known."""
    if self.scores is None or 'MRR' not in self.scores.values:
      return {}
    queries = np.asarray(self.scores.queries).tolist()
    pairs = zip(queries, self.scores.values['MRR'])
    return {query: round(1 / value) for query, value in pairs if value}

  @property
  def metrics(self) -> dict[str, float]:
    """Means of the metrics by name."""
    means = {} if self.scores is None else self.scores.means()
    return means | {name: float(v.mean()) for name, v in self.matches.items()}


def evaluate(
    embedder: Towers, params: Any, retrieval_set: RetrievalSet, k: int = 1000,
    codec: Codec | None = None,
) -> Evaluation:
  """Encodes queries and corpus, and ranks all of it exactly for every query.

  It keeps k hits a query, at least 100 where the corpus has so many. The
  embeddings of the corpus, or codes, are in memory, 4 D bytes a passage.
  """
  corpus = retrieval_set.corpus
  passages: Any = embedder.passages(
      params, corpus.cache.passage_tokens, corpus.rows
  )
  if codec is not None:
    passages = Coded(codec, codec.encode(passages))
  return rank(
      encode_queries(embedder, params, retrieval_set),
      passages,
      retrieval_set,
      k,
  )


def encode_queries(
    embedder: Towers, params: Any, retrieval_set: RetrievalSet
) -> np.ndarray:
  """Embeddings of queries, float32 [Q, D]; UserError if not finite."""
  tokens, rows = retrieval_set.cache.query_tokens, retrieval_set.query_rows
  queries = np.empty((len(rows), embedder.dim), np.float32)
  with Progress('Encoding', len(rows), 'queries') as progress:
    for places, found in embedder.batches('encode_query', params, tokens, rows):
      queries[places] = found
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
  search = search_of(passages, retrieval_set.corpus.ids)
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

  own = retrieval_set.self_hits
  ranking = hits(k) if own is None else ranking_lib.without(hits(k + 1), own)
  if documents is not None:
    return score(ranking, retrieval_set)
  gold = retrieval_set.gold
  ranks = ranks_in(ranking, gold)
  lost = [q for q, rank in enumerate(ranks) if gold[q] and not rank]
  if lost:
    ranks[lost] = search.gold_ranks(
        queries[lost],
        [gold[q] for q in lost],
        None if own is None else own[lost],
    )
  return score(ranking, retrieval_set, ranks)


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
  scores, matches = None, {}
  if any(retrieval_set.judgements) or not len(answered):
    scores = metrics.score(
        ranking, retrieval_set.judgements, size, ranks,
        retrieval_set.relevance_level,
    )
  if len(answered):
    metrics.check_depth(ranking, size)
    corpus = retrieval_set.corpus
    matches = answer_match.top_k_matches(
        ranking.indices[answered],
        [retrieval_set.answers[q] for q in answered],
        lambda i: retrieval_set.answer_text(corpus.texts[i], corpus.name(i)),
    )
  return Evaluation(ranking, scores, matches, answered)


def ranks_in(ranking: Ranking, gold: list[list[int]]) -> np.ndarray:
  """The rank of each query's best relevant hit, int64 [Q]; 0 for none."""
  ranks = np.zeros(len(gold), np.int64)
  for query, relevant in enumerate(gold):
    found = np.isin(ranking.indices[query], relevant)
    ranks[query] = found.argmax() + 1 if found.any() else 0
  return ranks
