"""Retrieval sets: queries, a corpus, and judgements or answers."""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from dualenc_jax.data import corpus as corpus_lib
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.corpus import Corpus
from dualenc_jax.data.text.ragged import fingerprints
from dualenc_jax.evaluation import metrics
from dualenc_jax.evaluation.max_passage import Documents
from dualenc_jax.parallel import hosts
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError


def _whole(passage: str, name: str) -> str:
  del name
  return passage


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
  """Queries, a corpus, and the passages of it that answer each query.

  Attributes:
    cache: token cache of the queries.
    query_rows: int64 [Q], a row of the cache for each query.
    query_ids: Q ids.
    corpus: the passages that are ranked.
    judgements: for each query the grades of its judged passages, or documents,
      by their index in the corpus.
    answers: for each query without a judged passage the strings that a passage
      which answers it contains.
    answer_text: the part of a passage, by its text and name, that is searched
      for these strings.
    self_hits: int64 [Q], for each query the passage, or document, that is the
      query itself and is not ranked, -1 if missing; None if the task has none.
    documents: the documents that the passages are parts of, where documents are
      ranked and judged.
    relevance_level: the least grade of a relevant passage.
    more_metrics: names of those that are asked for, beside the standard ones.
  """

  cache: Cache
  query_rows: np.ndarray
  query_ids: list[str]
  corpus: Corpus
  judgements: list[dict[int, int]]
  answers: list[list[str]]
  answer_text: Callable[[str, str], str] = _whole
  self_hits: np.ndarray | None = None
  documents: Documents | None = None
  relevance_level: int = 1
  more_metrics: tuple[str, ...] = ()

  @classmethod
  def of_split(
      cls, experiment: Experiment, split: str,
      document_separator: str | None = None,
  ) -> 'RetrievalSet':
    """All queries of a split of the task, with the corpus of the task.

    Arguments and errors are those of `from_cache`.
    """
    task = experiment.task.for_split(split)
    if document_separator is not None:
      task = task.judging_documents()
      experiment = dataclasses.replace(experiment, task=task)
    corpus = task.corpus_split(split)
    return cls.from_cache(
        experiment.cache(split),
        None if corpus is None else experiment.passage_cache(corpus),
        task.answer_text,
        task.self_hits,
        document_separator,
    )

  @classmethod
  def from_cache(
      cls, cache: Cache, corpus_cache: Cache | None = None,
      answer_text: Callable[[str, str], str] = _whole,
      without_self_hits: bool = False, document_separator: str | None = None,
  ) -> 'RetrievalSet':
    """All queries of a split.

    Without a corpus they are ranked over the split's own passages; equal
    queries are one query then, and equal passages one passage. The greatest of
    several grades of a passage for a query counts.

    Args:
      cache: cache of the queries and their judged passages.
      corpus_cache: cache of the split whose passages are ranked. Ids alone then
        identify queries and passages.
      answer_text: see the attribute.
      without_self_hits: whether a query's own id is not ranked for it.
      document_separator: ranks documents, whose ids are judged.

    Raises:
      UserError: no queries, no passages, ids that name different texts, judged
        ids that are not in the corpus, or documents where no passage is a part
        of one or a query has answers alone.
    """
    rows = np.flatnonzero(cache.query_texts.lengths)
    if not len(rows):
      raise UserError(
          f'{corpus_lib.describe(cache)} has only passages; expected a split'
          ' with queries to evaluate on.'
      )
    if corpus_cache is None:
      query_rows, query_of = _queries_by_text(cache, rows)
      corpus, passages = Corpus.from_pairs(cache)
      passages = passages[rows]
    else:
      query_rows, query_of = corpus_lib.queries_by_id(cache, rows)
      corpus = Corpus.from_passages(corpus_cache)
    documents = None
    if document_separator is not None:
      documents = Documents.from_passage_ids(corpus.ids, document_separator)
      passages = _find_judged(documents, 'documents', cache, rows)
    elif corpus_cache is not None:
      passages = _find_judged(corpus, 'passages', cache, rows)
    judgements: list[dict[int, int]] = [{} for _ in query_rows]
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
      ranked = corpus if documents is None else documents
      self_hits = ranked.find(query_ids)
      for judged, self_hit in zip(judgements, self_hits.tolist()):
        judged.pop(self_hit, None)
    answers = [
        [] if judged else _answers(cache, row)
        for row, judged in zip(query_rows, judgements)
    ]
    if documents is not None and any(answers):
      raise UserError(
          f'{corpus_lib.describe(cache)} has answers, which are searched in'
          ' passages, but no judged documents. Leave out --max_passage.'
      )
    return cls(
        cache, query_rows, query_ids, corpus, judgements, answers, answer_text,
        self_hits, documents,
    )

  def agree(self) -> None:
    """Raises UserError unless all hosts that have joined have the same texts.
    """
    sources = (c.header['source'] for c in (self.cache, self.corpus.cache))
    hosts.agree('data', '\n'.join(map(str, sources)))

  def lacks(self, metric: str) -> str:
    """'answers' or 'judged passages' if the metric needs them and none are."""
    of_answers, answers = metrics.parse(metric).is_of_answers, any(self.answers)
    if of_answers:
      return '' if answers else 'answers'
    return 'judged passages' * (answers and not any(self.judgements))

  def all_answers(self) -> list[list[str]]:
    """The answers of each query, whether it has a judged passage or not."""
    return [_answers(self.cache, row) for row in self.query_rows]

  def subset(
      self, queries: int, passages: int, seed: int = 0
  ) -> 'RetrievalSet':
    """A fixed sample of queries, over a corpus with their relevant passages.

    Raises:
      UserError: no query has a relevant passage.
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
    self_hits = self.self_hits
    if self_hits is not None:
      places = (position.get(int(p), -1) for p in self_hits[chosen])
      self_hits = np.fromiter(places, np.int64)
    return dataclasses.replace(
        self,
        query_rows=self.query_rows[chosen],
        query_ids=[self.query_ids[q] for q in chosen],
        corpus=self.corpus.subset(kept),
        judgements=[
            {position[p]: g for p, g in judged.items() if p in position}
            for judged in (self.judgements[q] for q in chosen)
        ],
        answers=[self.answers[q] for q in chosen],
        self_hits=self_hits,
    )

  @property
  def query_texts(self) -> Sequence[str]:
    return corpus_lib.TextColumn(self.cache.query_texts, self.query_rows)

  @property
  def ranked_ids(self) -> Any:
    """Ids of the ranked passages or documents, a sequence or array."""
    return self.corpus.ids if self.documents is None else self.documents.ids

  @functools.cached_property
  def gold(self) -> list[list[int]]:
    """For each query the relevant rows, numbered as in `judgements`."""
    return [
        sorted(p for p, g in judged.items() if g >= self.relevance_level)
        for judged in self.judgements
    ]

  @functools.cached_property
  def _by_text(self) -> tuple[np.ndarray, np.ndarray]:
    """The first passage of each text, and the text's number by passage."""
    prints = fingerprints(self.corpus.cache.passage_texts)
    return corpus_lib.first_rows(prints[self.corpus.rows])

  def unjudged_copies(self) -> int:
    """Counts queries with a relevant passage that has a copy, not relevant.

    Ids decide which of the two ranks first. It is 0 if documents are ranked.
    """
    if self.documents is not None:
      return 0
    _, text_of = self._by_text
    sizes = np.bincount(text_of)
    queries = 0
    for query, relevant in enumerate(self.gold):
      texts = text_of[relevant].tolist()
      counts = collections.Counter(texts)
      if self.self_hits is not None and self.self_hits[query] >= 0:
        counts[text_of[self.self_hits[query]]] += 1
      queries += any(counts[text] < sizes[text] for text in texts)
    return queries

  def with_equal_texts_as_one(self) -> 'RetrievalSet':
    """Takes passages of one text as one, the first of them in the corpus.

    It has the highest grade of its copies, and is the query if one of them is.
    """
    first, text_of = self._by_text
    self_hits = self.self_hits
    if self_hits is not None:
      self_hits = np.where(self_hits >= 0, text_of[self_hits], -1)
    judgements: list[dict[int, int]] = []
    for query, judged in enumerate(self.judgements):
      merged: dict[int, int] = {}
      for passage, grade in judged.items():
        one = int(text_of[passage])
        merged[one] = max(grade, merged.get(one, grade))
      if self_hits is not None:
        merged.pop(int(self_hits[query]), None)
      judgements.append(merged)
    return dataclasses.replace(
        self, corpus=self.corpus.subset(first), judgements=judgements,
        self_hits=self_hits,
    )


def _queries_by_text(
    cache: Cache, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """A row for each query, and the query of each of `rows`."""
  first, query_of = corpus_lib.first_rows(fingerprints(cache.query_texts)[rows])
  corpus_lib.check_unique('query_id', cache.query_ids, rows[first], cache)
  return rows[first], query_of


def _find_judged(
    ranked: Corpus | Documents, what: str, cache: Cache, rows: np.ndarray
) -> np.ndarray:
  """The judged passage of each of `rows`, by id; -1 for none."""
  ids = [cache.passage_ids.text(row) for row in rows]
  judged = np.array([bool(name) for name in ids])
  places = np.where(judged, ranked.find(ids), -1)
  missing = sorted({ids[i] for i in np.flatnonzero(judged & (places < 0))})
  if missing:
    more = f' and {len(missing) - 3:,} more' if len(missing) > 3 else ''
    raise UserError(
        f'{corpus_lib.describe(cache)} judges {len(set(ids) - {""}):,} {what},'
        f' of which {len(missing):,} are not in the corpus: ids'
        f' {", ".join(missing[:3])}{more}. The corpus has ids such as'
        f' {ranked.ids[0]}. Do both belong to the same version of the data set?'
    )
  return places


def _answers(cache: Cache, row: int) -> list[str]:
  start, end = cache.answers_offsets[row : row + 2]
  return [cache.answers.text(i) for i in range(start, end)]
