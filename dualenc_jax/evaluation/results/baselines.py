"""Baselines measured beside a model: BM25, and BM25 fused with it."""

from collections.abc import Callable, Collection, Iterator
import dataclasses
import logging
import math
from typing import Any

import numpy as np

from dualenc_jax.data import Dataset
from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results.result_files import BASELINES, VALIDATION
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search import bm25, hybrid
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.retrieval.search.hybrid import Hybrid, RRF, WEIGHT
from dualenc_jax.retrieval.search.ranking import id_places
from dualenc_jax.utils.errors import UserError

BM25_FOLDER, HYBRID_FOLDER = BASELINES
# Passages beyond which BM25 is computed only where it is asked for.
_MANY = 500_000
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Words:
  """How BM25 sees a corpus; see `retrieval.search.bm25.BM25`."""

  k1: float = bm25.K1
  b: float = bm25.B
  language: str | None = bm25.LANGUAGE

  def __post_init__(self):
    bm25.check_parameters(self.k1, self.b, self.language)

  def of(self, retrieval_set: RetrievalSet) -> BM25:
    """BM25 of the passages of a set."""
    return BM25(retrieval_set.corpus.texts, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
  """A model's embeddings, which hybrid search fuses with the words.

  Queries [Q, D] and passages [N, D], an array or a store of rows; `validation`
  makes the validation split with its own, None where that cannot be.
  """

  queries: np.ndarray
  passages: Any
  validation: Callable[[], tuple[RetrievalSet, np.ndarray, Any]] | None


@dataclasses.dataclass(frozen=True)
class Baselines:
  """Which baselines are measured, and how.

  Attributes:
    names: of 'bm25' and 'hybrid'; None for both, unless the corpus is large.
    words: how BM25 sees the corpus.
    weight: of `Hybrid`; 'validation' chooses it on the task's validation split,
      and None does so if there is another one than what is measured.
  """

  names: Collection[str] | None = None
  words: Words = Words()
  weight: float | str | None = None

  def may_choose(self, task: Dataset, split: str) -> bool:
    """Whether there is a split to choose on; UserError if it is asked for."""
    able = split != VALIDATION and VALIDATION in task.splits()
    if self.weight == VALIDATION and not able:
      why = 'it is what is measured' if split == VALIDATION else 'it has none'
      raise UserError(
          f'The weight of hybrid search cannot be chosen on split {VALIDATION}'
          f' of {task.label}: {why}. Give --hybrid_weight a number of 0 to 1,'
          f' or {RRF}.'
      )
    return able

  def evaluate(
      self, ranked: RetrievalSet, dense: Dense, k: int
  ) -> Iterator[tuple[str, Evaluation, dict[str, Any]]]:
    """Yields name, result of k hits a query, and what it depends on."""
    wanted = self._wanted(len(ranked.corpus))
    if not wanted:
      return
    try:
      words = self.words.of(ranked)
    except UserError as e:
      if self.names is not None:
        raise
      _LOG.warning('BM25 and hybrid search are left out: %s', e)
      return
    if HYBRID_FOLDER not in wanted:
      yield BM25_FOLDER, *self.bm25(words, ranked, k)
      return
    weight = self._weight(words, ranked, dense)
    system = Hybrid(words, dense.passages, ranked.corpus.ids)
    # BM25's scores are of use to both.
    own, fused = evaluation.rank_by_scores(
        system.scores(ranked.query_texts, dense.queries, weight), ranked, k
    )
    if BM25_FOLDER in wanted:
      yield BM25_FOLDER, own, self._facts(BM25_FOLDER)
    facts = {**self._facts(HYBRID_FOLDER), 'weight': weight}
    yield HYBRID_FOLDER, fused, facts

  def bm25(
      self, words: BM25, ranked: RetrievalSet, k: int
  ) -> tuple[Evaluation, dict[str, Any]]:
    """The result of BM25, and what it depends on."""
    scores = zip(words.retrieved(ranked.query_texts))
    (found,) = evaluation.rank_by_scores(scores, ranked, k)
    return found, self._facts(BM25_FOLDER)

  def _facts(self, system: str) -> dict[str, Any]:
    return {'system': system, **dataclasses.asdict(self.words)}

  def _wanted(self, passages: int) -> Collection[str]:
    if self.names is not None:
      return self.names
    if passages <= _MANY:
      return BASELINES
    _LOG.info(
        'BM25 and hybrid search are left out, for %s passages are many;'
        ' --baselines=bm25,hybrid asks for them.',
        f'{passages:,}',
    )
    return ()

  def _weight(
      self, words: BM25, ranked: RetrievalSet, dense: Dense
  ) -> float | str:
    """The weight that suits the validation split, or the one given."""
    if self.weight not in (None, VALIDATION):
      return self.weight
    if dense.validation is None:
      return WEIGHT
    try:
      other, queries, passages = dense.validation()
      if other.corpus.cache.header != ranked.corpus.cache.header:
        words = self.words.of(other)
      system = Hybrid(words, passages, other.corpus.ids)
      weight = choose_weight(system, queries, other)
    except UserError as e:
      if self.weight is not None:
        raise
      _LOG.warning('The weight of hybrid search is %s: %s', WEIGHT, e)
      return WEIGHT
    _LOG.info(
        "Hybrid search: %s of the weight is the dense scores', as suits split"
        ' %s.', weight, VALIDATION,
    )
    return weight


def choose_weight(
    system: Hybrid, embeddings: np.ndarray, retrieval_set: RetrievalSet,
    most: int = 1000,
) -> float:
  """Chooses the share of the dense scores by MRR.

  Among the shares that are behind the best by a standard error of the
  difference, or less, it is the nearest to `hybrid.WEIGHT`, so that few queries
  do not decide much.

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
        f' {WEIGHT}.'
    )
  chosen = np.random.default_rng(0).permutation(chosen)[:most].tolist()
  reciprocal = np.zeros((len(chosen), len(hybrid.WEIGHTS)))
  texts = [retrieval_set.query_texts[query] for query in chosen]
  pairs = zip(chosen, system.both(texts, embeddings[chosen]))
  for row, (query, both) in enumerate(pairs):
    for i, scores in enumerate(hybrid.weighted(*both, hybrid.WEIGHTS)):
      scores = evaluation.scores_of_ranked(scores, retrieval_set, query)
      rank = evaluation.rank_of_best(scores, gold[query], places)
      reciprocal[row, i] = 1 / rank if rank else 0.0
  best = reciprocal.mean(axis=0).argmax()
  behind = reciprocal[:, [best]] - reciprocal
  error = behind.std(axis=0) / math.sqrt(len(chosen))
  near = np.flatnonzero(behind.mean(axis=0) <= error).tolist()
  return min(
      (hybrid.WEIGHTS[i] for i in near), key=lambda weight: abs(weight - WEIGHT)
  )
