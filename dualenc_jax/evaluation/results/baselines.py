"""Baselines of a model: BM25, and BM25 fused with it."""

from collections.abc import Callable, Collection, Iterator
import dataclasses
import logging
import math
from typing import Any

import numpy as np

from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results.result_files import BASELINES
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search import bm25, hybrid
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.retrieval.search.hybrid import Hybrid, WEIGHT
from dualenc_jax.retrieval.search.ranking import id_places
from dualenc_jax.utils.errors import UserError

BM25_FOLDER, HYBRID_FOLDER = BASELINES
# BM25 of more passages is computed only if it is asked for.
_MANY = 500_000
# A retrieval set, and a model's embeddings of its queries and passages.
EmbeddedSet = tuple[RetrievalSet, np.ndarray, Any]
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class BM25Config:
  """How BM25 sees a corpus; see `retrieval.search.bm25.BM25`."""

  k1: float = bm25.K1
  b: float = bm25.B
  language: str | None = bm25.LANGUAGE

  def __post_init__(self):
    bm25.check_parameters(self.k1, self.b, self.language)

  def of(self, retrieval_set: RetrievalSet) -> BM25:
    """BM25 of the passages of a set."""
    return BM25(retrieval_set.corpus.texts, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Baselines:
  """The choice of baselines to measure, and their settings.

  Attributes:
    names: of 'bm25' and 'hybrid'; None for both, unless the corpus is large.
    words: how BM25 sees the corpus.
    weight: the share of the dense scores in `Hybrid`, or 'rrf'; None chooses
      the share on the validation split, or is `hybrid.WEIGHT` without one.
  """

  names: Collection[str] | None = None
  words: BM25Config = BM25Config()
  weight: float | str | None = None

  def evaluate(
      self, ranked: RetrievalSet, queries: np.ndarray, passages: Any, k: int,
      embed_validation: Callable[[], EmbeddedSet] | None = None,
  ) -> Iterator[tuple[str, Evaluation, dict[str, Any]]]:
    """Yields name, result of k hits a query, and the facts it depends on.

    Queries are float32 [Q, D], the model's embeddings, passages [N, D], an
    array or a store of rows. `embed_validation` makes the validation split, to
    choose the weight on; None if there is none or it is what is measured.
    """
    names = self._choose_names(len(ranked.corpus))
    if not names:
      return
    try:
      words = self.words.of(ranked)
    except UserError as e:
      if self.names is not None:
        raise
      _LOG.warning('BM25 and hybrid search are left out: %s', e)
      return
    if HYBRID_FOLDER not in names:
      yield BM25_FOLDER, *self.bm25(words, ranked, k)
      return
    weight = self._choose_weight(words, ranked, embed_validation)
    system = Hybrid(words, passages, ranked.corpus.ids)
    # Both systems use BM25's scores.
    own, fused = evaluation.rank_by_scores(
        system.scores(ranked.query_texts, queries, weight), ranked, k
    )
    if BM25_FOLDER in names:
      yield BM25_FOLDER, own, self._facts(BM25_FOLDER)
    facts = {**self._facts(HYBRID_FOLDER), 'weight': weight}
    yield HYBRID_FOLDER, fused, facts

  def bm25(
      self, words: BM25, ranked: RetrievalSet, k: int
  ) -> tuple[Evaluation, dict[str, Any]]:
    """The result of BM25, and the facts it depends on."""
    scores = zip(words.matched_scores(ranked.query_texts))
    (result,) = evaluation.rank_by_scores(scores, ranked, k)
    return result, self._facts(BM25_FOLDER)

  def _facts(self, system: str) -> dict[str, Any]:
    return {'system': system, **dataclasses.asdict(self.words)}

  def _choose_names(self, passages: int) -> Collection[str]:
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

  def _choose_weight(
      self, words: BM25, ranked: RetrievalSet,
      embed_validation: Callable[[], EmbeddedSet] | None,
  ) -> float | str:
    if self.weight is not None:
      return self.weight
    if embed_validation is None:
      return WEIGHT
    try:
      validation, queries, passages = embed_validation()
      if validation.corpus.cache.header != ranked.corpus.cache.header:
        words = self.words.of(validation)
      system = Hybrid(words, passages, validation.corpus.ids)
      weight = choose_weight(system, queries, validation)
    except UserError as e:
      _LOG.warning('The weight of hybrid search is %s: %s', WEIGHT, e)
      return WEIGHT
    _LOG.info(
        'The weight of hybrid search is %s, chosen on the validation split.',
        weight,
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

  The set, whose queries' embeddings are float32 [Q, D], is another than the one
  that is measured; at most `most` of its queries are looked at.

  Raises:
    UserError: no query has a relevant passage.
  """
  places, gold = id_places(retrieval_set.ranked_ids), retrieval_set.gold
  chosen = [query for query, relevant in enumerate(gold) if relevant]
  if not chosen:
    raise UserError('No query of the validation split has a relevant passage.')
  chosen = np.random.default_rng(0).permutation(chosen)[:most].tolist()
  reciprocal = np.zeros((len(chosen), len(hybrid.WEIGHTS)))
  texts = [retrieval_set.query_texts[query] for query in chosen]
  pairs = zip(chosen, system.score_both(texts, embeddings[chosen]))
  for row, (query, both) in enumerate(pairs):
    for i, scores in enumerate(hybrid.fuse_weighted(*both, hybrid.WEIGHTS)):
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
