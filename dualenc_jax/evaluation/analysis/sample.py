"""The sample of queries and passages that an analysis embeds."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from dualenc_jax.data.corpus import describe
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.utils.errors import UserError

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

  Args:
    retrieval_set: queries and a corpus.
    size: the most queries, and the most passages.
    seed: seed of the draws.

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
