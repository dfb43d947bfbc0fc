"""Retrieval sets, and what a model scores on them."""

import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.fingerprint import fingerprints
from dualenc_jax.errors import UserError
from dualenc_jax.retrieval import metrics
from dualenc_jax.retrieval import ranking as ranking_lib
from dualenc_jax.retrieval.embedder import Embedder


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
  """Queries, a corpus, and which passages are relevant to which query.

  Equal queries of a cache are one query, relevant to all their passages; equal
  passages are one passage.

  Attributes:
    query_rows: int64 [Q], a row of the cache for each query.
    passage_rows: int64 [N], a row of the cache for each passage.
    query_ids: Q ids.
    passage_ids: N ids.
    gold: for each query the relevant passages, as indices into the corpus.
    cache: where the tokens and texts are.
  """

  query_rows: np.ndarray
  passage_rows: np.ndarray
  query_ids: list[str]
  passage_ids: list[str]
  gold: list[list[int]]
  cache: Cache

  @classmethod
  def from_cache(cls, cache: Cache) -> 'RetrievalSet':
    """All queries and passages of a split."""
    # By text, not by tokens, which are cut at the length of the tower.
    query_rows, query_of = _first_rows(fingerprints(cache.query_texts))
    passage_rows, passage_of = _first_rows(fingerprints(cache.passage_texts))
    gold = [set() for _ in query_rows]
    for query, passage in zip(query_of, passage_of):
      gold[query].add(int(passage))
    query_ids = [cache.query_ids.text(row) for row in query_rows]
    passage_ids = [cache.passage_ids.text(row) for row in passage_rows]
    _check_unique('query_id', query_ids)
    _check_unique('passage_id', passage_ids)
    return cls(
        query_rows,
        passage_rows,
        query_ids,
        passage_ids,
        [sorted(g) for g in gold],
        cache,
    )

  def subset(
      self, queries: int, passages: int, seed: int = 0
  ) -> 'RetrievalSet':
    """A fixed sample; all relevant passages of its queries are in it."""
    rng = np.random.default_rng(seed)
    num_queries, num_passages = len(self.query_ids), len(self.passage_ids)
    chosen = np.sort(rng.permutation(num_queries)[:queries])
    relevant = sorted({p for q in chosen for p in self.gold[q]})
    others = np.setdiff1d(np.arange(num_passages), relevant)
    extra = rng.permutation(others)[: max(passages - len(relevant), 0)]
    corpus = np.sort(np.concatenate([relevant, extra]).astype(np.int64))
    position = {int(p): i for i, p in enumerate(corpus)}
    return RetrievalSet(
        self.query_rows[chosen],
        self.passage_rows[corpus],
        [self.query_ids[q] for q in chosen],
        [self.passage_ids[p] for p in corpus],
        [[position[p] for p in self.gold[q]] for q in chosen],
        self.cache,
    )

  @property
  def query_texts(self) -> list[str]:
    return [self.cache.query_texts.text(row) for row in self.query_rows]

  @property
  def passage_texts(self) -> list[str]:
    return [self.cache.passage_texts.text(row) for row in self.passage_rows]

  @property
  def qrels(self) -> dict[str, dict[str, int]]:
    return {
        query_id: {self.passage_ids[p]: 1 for p in gold}
        for query_id, gold in zip(self.query_ids, self.gold)
    }


def evaluate(
    embedder: Embedder, params: Any, retrieval_set: RetrievalSet, k: int = 1000
) -> tuple[dict[str, float], ranking_lib.Ranking]:
  """Ranks the whole corpus exactly for every query.

  Returns:
    The metrics, and the ranking of the top k.
  """
  cache, ids = retrieval_set.cache, retrieval_set.passage_ids
  queries = embedder.queries(
      params, cache.query_tokens, retrieval_set.query_rows
  )
  passages = embedder.passages(
      params, cache.passage_tokens, retrieval_set.passage_rows
  )
  ranking = ranking_lib.top_k(queries, passages, ids, k)
  ranks = ranking_lib.gold_ranks(queries, passages, ids, retrieval_set.gold)
  return score(ranking, retrieval_set, ranks), ranking


def score(
    ranking: ranking_lib.Ranking,
    retrieval_set: RetrievalSet,
    ranks: np.ndarray | None = None,
) -> dict[str, float]:
  """The metrics of a ranking; `ranks` of the gold passages if it is cut off."""
  return metrics.evaluate(
      ranking,
      retrieval_set.query_ids,
      retrieval_set.passage_ids,
      retrieval_set.qrels,
      ranks,
  )


def _first_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Distinct values in order of appearance, and which of them each row has."""
  _, first, inverse = np.unique(
      values, return_index=True, return_inverse=True
  )
  order = np.argsort(first)
  rank = np.empty_like(order)
  rank[order] = np.arange(len(order))
  return first[order], rank[inverse]


def _check_unique(name: str, ids: list[str]) -> None:
  seen = set()
  for i in ids:
    if i in seen:
      raise UserError(
          f'{name} {i!r} names two different texts. Expected one text an id:'
          ' mend the file, or leave the ids out.'
      )
    seen.add(i)
