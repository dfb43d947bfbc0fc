"""Retrieval sets, and what a model scores on them."""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.fingerprint import fingerprints
from dualenc_jax.errors import UserError
from dualenc_jax.retrieval import answer_match
from dualenc_jax.retrieval import corpus as corpus_lib
from dualenc_jax.retrieval import metrics
from dualenc_jax.retrieval import ranking as ranking_lib
from dualenc_jax.retrieval.corpus import Corpus
from dualenc_jax.retrieval.embedder import Embedder


def _whole(passage: str, name: str) -> str:
  del name
  return passage


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
  """Queries, a corpus, and which of its passages answer which query.

  Attributes:
    cache: where the tokens and texts of the queries are.
    query_rows: int64 [Q], a row of the cache for each query.
    query_ids: Q ids.
    corpus: the passages that are ranked.
    judgements: for each query the grades of its judged passages, by their
      index in the corpus; 1 and more is relevant.
    answers: for each query without a judged passage the strings of which a
      passage that answers it has one.
    answer_text: the part of a passage, by its text and name, in which these
      are looked for.
    self_hits: int64 [Q], for each query the row of the corpus that is the query
      itself and is not ranked, -1 for none; None if none is left out.
  """

  cache: Cache
  query_rows: np.ndarray
  query_ids: list[str]
  corpus: Corpus
  judgements: list[dict[int, int]]
  answers: list[list[str]]
  answer_text: Callable[[str, str], str] = _whole
  self_hits: np.ndarray | None = None

  @classmethod
  def from_cache(
      cls,
      cache: Cache,
      corpus_cache: Cache | None = None,
      answer_text: Callable[[str, str], str] = _whole,
      without_self_hits: bool = False,
  ) -> 'RetrievalSet':
    """All queries of a split.

    Without a corpus they are ranked over the split's own passages; equal
    queries are one query then, and equal passages one passage. Of several
    grades of a passage for a query the greatest counts.

    Args:
      cache: of the queries and their judged passages.
      corpus_cache: of the split whose passages are ranked. Ids alone tell then
        what is one query and one passage.
      answer_text: see the attribute.
      without_self_hits: a passage of a query's own id is not ranked for it.

    Raises:
      UserError: no queries, no passages, ids that name different texts, or
        judged passages that are not in the corpus.
    """
    rows = np.flatnonzero(cache.query_texts.lengths)
    if not len(rows):
      raise UserError(
          f'{corpus_lib.describe(cache)} has passages only; expected a split'
          ' with queries to evaluate on.'
      )
    if corpus_cache is None:
      query_rows, query_of = _queries_by_text(cache, rows)
      corpus, passages = Corpus.of_pairs(cache)
      passages = passages[rows]
    else:
      query_rows, query_of = _queries_by_id(cache, rows)
      corpus = Corpus.of_passages(corpus_cache)
      passages = _find_judged(corpus, cache, rows)
    judgements = [{} for _ in query_rows]
    grades = cache.relevances[rows].tolist()
    for query, passage, grade in zip(
        query_of.tolist(), passages.tolist(), grades
    ):
      if passage >= 0:
        known = judgements[query]
        known[passage] = max(grade, known.get(passage, grade))
    query_ids = [cache.query_ids.text(row) for row in query_rows]
    self_hits = None
    if without_self_hits:
      row_of = {passage_id: row for row, passage_id in enumerate(corpus.ids)}
      self_hits = np.array([row_of.get(name, -1) for name in query_ids])
      for judged, own in zip(judgements, self_hits.tolist()):
        judged.pop(own, None)
    return cls(
        cache,
        query_rows,
        query_ids,
        corpus,
        judgements,
        [
            [] if judged else _answers(cache, row)
            for row, judged in zip(query_rows, judgements)
        ],
        answer_text,
        self_hits,
    )

  def subset(
      self, queries: int, passages: int, seed: int = 0
  ) -> 'RetrievalSet':
    """A fixed sample of the queries that have a relevant passage.

    All relevant passages of its queries are in it.

    Raises:
      UserError: no query has one.
    """
    rng = np.random.default_rng(seed)
    gold = self.gold
    with_gold = np.flatnonzero([len(rows) for rows in gold])
    if not len(with_gold):
      raise UserError(
          f'{corpus_lib.describe(self.cache)} has no query with a relevant'
          ' passage; expected at least one.'
      )
    chosen = np.sort(rng.permutation(with_gold)[:queries])
    relevant = sorted({p for q in chosen for p in gold[q]})
    others = np.setdiff1d(np.arange(len(self.corpus)), relevant)
    extra = rng.permutation(others)[: max(passages - len(relevant), 0)]
    kept = np.sort(np.concatenate([relevant, extra]).astype(np.int64))
    position = {int(p): i for i, p in enumerate(kept)}
    own = self.self_hits
    if own is not None:
      own = np.array([position.get(int(p), -1) for p in own[chosen]])
    return dataclasses.replace(
        self,
        query_rows=self.query_rows[chosen],
        query_ids=[self.query_ids[q] for q in chosen],
        corpus=self.corpus.subset(kept),
        judgements=[
            {
                position[p]: grade
                for p, grade in self.judgements[q].items()
                if p in position
            }
            for q in chosen
        ],
        answers=[self.answers[q] for q in chosen],
        self_hits=own,
    )

  @property
  def query_texts(self) -> list[str]:
    return [self.cache.query_texts.text(row) for row in self.query_rows]

  @property
  def passage_ids(self) -> list[str]:
    return self.corpus.ids

  @property
  def passage_texts(self) -> list[str]:
    return [self.corpus.text(i) for i in range(len(self.corpus))]

  @property
  def gold(self) -> list[list[int]]:
    """For each query the relevant passages, as indices into the corpus."""
    return [
        sorted(p for p, grade in judged.items() if grade >= 1)
        for judged in self.judgements
    ]

  @property
  def qrels(self) -> metrics.Qrels:
    """The judgements, as `metrics` takes them."""
    ids = self.corpus.ids
    return {
        query_id: {ids[p]: grade for p, grade in judged.items()}
        for query_id, judged in zip(self.query_ids, self.judgements)
        if judged
    }


def evaluate(
    embedder: Embedder, params: Any, retrieval_set: RetrievalSet, k: int = 1000
) -> tuple[dict[str, float], ranking_lib.Ranking]:
  """Ranks the whole corpus exactly for every query.

  Returns:
    The metrics, and the ranking of the top k.
  """
  cache, corpus = retrieval_set.cache, retrieval_set.corpus
  queries = embedder.queries(
      params, cache.query_tokens, retrieval_set.query_rows
  )
  passages = embedder.passages(
      params, corpus.cache.passage_tokens, corpus.rows
  )
  own = retrieval_set.self_hits
  ranking = ranking_lib.top_k(
      queries, passages, corpus.ids, k if own is None else k + 1
  )
  if own is not None:
    ranking = ranking_lib.without(ranking, own)
  ranks = ranking_lib.gold_ranks(
      queries, passages, corpus.ids, retrieval_set.gold, self_hits=own
  )
  return score(ranking, retrieval_set, ranks), ranking


def score(
    ranking: ranking_lib.Ranking,
    retrieval_set: RetrievalSet,
    ranks: np.ndarray | None = None,
) -> dict[str, float]:
  """The metrics of a ranking.

  Those of `metrics.evaluate` over the queries with a relevant passage, and
  those of `answer_match.top_k_accuracy` over the queries without a judged
  passage that have answers; if there are only such, these alone.

  Args:
    ranking: [Q, k] hits, k at least 100 or the whole corpus.
    retrieval_set: what was ranked.
    ranks: of the best relevant passages if the ranking is cut off.

  Raises:
    UserError: a ranking too shallow, or what `metrics.evaluate` raises.
  """
  left_out = retrieval_set.self_hits is not None
  deepest = min(max(answer_match.TOP_K), len(retrieval_set.corpus) - left_out)
  if ranking.indices.shape[1] < deepest:
    raise UserError(
        f'The ranking holds {ranking.indices.shape[1]} hits a query; expected'
        f' at least {deepest}: rank with a larger k.'
    )
  values = {}
  answered = [q for q, answers in enumerate(retrieval_set.answers) if answers]
  if any(retrieval_set.judgements) or not answered:
    values |= metrics.evaluate(
        ranking,
        retrieval_set.query_ids,
        retrieval_set.passage_ids,
        retrieval_set.qrels,
        ranks,
    )
  if answered:
    corpus = retrieval_set.corpus
    values |= answer_match.top_k_accuracy(
        ranking.indices[answered],
        [retrieval_set.answers[q] for q in answered],
        lambda i: retrieval_set.answer_text(corpus.text(i), corpus.name(i)),
    )
  return values


def _queries_by_text(
    cache: Cache, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """A row for each query, and the query of each of `rows`."""
  first, query_of = corpus_lib.first_rows(fingerprints(cache.query_texts)[rows])
  ids = [cache.query_ids.text(row) for row in rows[first]]
  corpus_lib.check_unique('query_id', ids, cache)
  return rows[first], query_of


def _queries_by_id(
    cache: Cache, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """A row for each query, and the query of each of `rows`."""
  first, query_of = corpus_lib.first_rows(fingerprints(cache.query_ids)[rows])
  texts = fingerprints(cache.query_texts)[rows]
  other = np.flatnonzero(texts != texts[first][query_of])
  if len(other):
    name = cache.query_ids.text(rows[other[0]])
    raise corpus_lib.two_of('query_id', name, cache)
  return rows[first], query_of


def _find_judged(corpus: Corpus, cache: Cache, rows: np.ndarray) -> np.ndarray:
  """The passage of each of `rows` in the corpus, by id; -1 for none."""
  judged = [cache.passage_ids.text(row) for row in rows]
  wanted = set(judged) - {''}
  # Only of these: a corpus of millions would make a large dictionary.
  index = {name: i for i, name in enumerate(corpus.ids) if name in wanted}
  missing = sorted(wanted - index.keys())
  if missing:
    more = f' and {len(missing) - 3:,} more' if len(missing) > 3 else ''
    raise UserError(
        f'{corpus_lib.describe(cache)} judges {len(wanted):,} passages, of'
        f' which {len(missing):,} are not among the {len(corpus):,} of split'
        f' {corpus.cache.header["split"]!r}: ids {", ".join(missing[:3])}'
        f'{more}. Expected all: are both of one version of the data set?'
    )
  return np.array([index.get(name, -1) for name in judged])


def _answers(cache: Cache, row: int) -> list[str]:
  start, end = cache.answer_offsets[row : row + 2]
  return [cache.answers.text(i) for i in range(start, end)]
