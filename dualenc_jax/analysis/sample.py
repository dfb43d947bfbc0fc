"""Which queries and passages are looked at, and how figures tell of them."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from dualenc_jax.data.corpus import describe
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet

# Fewer do not make a map, nor folds to classify in.
FEWEST = 10
RANDOM = 'random'
RELEVANT = 'relevant'


@dataclasses.dataclass(frozen=True)
class Sample:
  """Rows of a retrieval set; a prefix of the queries is a sample, too.

  Attributes:
    retrieval_set: where they are from.
    seed: of the draws.
    kind: of the passages: `RANDOM`, or `RELEVANT` for the queries.
    queries: int64 [n], of the set's queries, in random order.
    passages: int64 [m], of the corpus, in random order, or in that of the
      queries that they are relevant for.
    gold: for each of the n queries its relevant passages, rows of the corpus.
    pair_queries: int64 [p], positions in `queries` of those with a relevant
      passage.
    pair_passages: int64 [p], one of them for each, rows of the corpus.
    searched: int64 [M], the rows of the corpus that a query's best hit is
      looked for in, ascending; all of them unless the corpus was cut, and then
      `pair_passages` and a random part, of which random `passages` are.
  """

  retrieval_set: RetrievalSet
  seed: int
  kind: str
  queries: np.ndarray
  passages: np.ndarray
  gold: Sequence[Sequence[int]]
  pair_queries: np.ndarray
  pair_passages: np.ndarray
  searched: np.ndarray

  @property
  def has_pairs(self) -> bool:
    """Whether there are enough positive pairs to tell of them."""
    return len(self.pair_queries) >= FEWEST

  def query_id(self, position: int) -> str:
    return self.retrieval_set.query_ids[self.queries[position]]

  def passage_id(self, position: int) -> str:
    return self.retrieval_set.corpus.ids[self.passages[position]]

  def query_rows(self) -> np.ndarray:
    """Rows of the queries' cache: int64 [n]."""
    return self.retrieval_set.query_rows[self.queries]

  def passage_rows(self) -> np.ndarray:
    """Rows of the corpus' cache: int64 [m]."""
    return self.retrieval_set.corpus.rows[self.passages]


def draw(
    retrieval_set: RetrievalSet,
    size: int,
    kind: str = RANDOM,
    seed: int = 0,
    max_passages: int | None = None,
) -> Sample:
  """Draws at most `size` queries and as many passages.

  The same for every model, as it depends on the data and the seed only.

  Args:
    retrieval_set: queries and a corpus.
    size: of the sample.
    kind: `RANDOM` passages of the corpus, as in the papers' maps, or `RELEVANT`
      ones of the queries, one each.
    seed: of the draws.
    max_passages: search only so many passages, drawn at random, and those that
      are relevant for the queries; None for the whole corpus.

  Raises:
    UserError: fewer than `FEWEST` queries or passages, or no relevant ones.
  """
  rng = np.random.default_rng(seed)
  count = len(retrieval_set.corpus)
  all_gold = retrieval_set.gold
  queries = rng.permutation(len(all_gold))[:size]
  gold = [all_gold[q] for q in queries]
  pair_queries = np.flatnonzero([len(rows) for rows in gold])
  pair_passages = np.array(
      [rng.choice(gold[q]) for q in pair_queries], np.int64
  )
  part = np.arange(count)
  if max_passages is not None and max_passages < count:
    part = rng.choice(count, max_passages, replace=False)
  searched = np.union1d(part, pair_passages)
  if kind == RELEVANT:
    _, first = np.unique(pair_passages, return_index=True)
    passages = pair_passages[np.sort(first)]
  else:
    # Not of those searched, among which relevant ones are too many.
    passages = rng.choice(part, min(size, len(part)), replace=False)
  for what, rows in (('queries', queries), (f'{kind} passages', passages)):
    if len(rows) < FEWEST:
      raise UserError(
          f'{describe(retrieval_set.cache)} has {len(rows)} {what}; expected'
          f' at least {FEWEST} to look at the embedding space. Take a larger'
          ' split.'
      )
  pairs = (pair_queries, pair_passages)
  return Sample(
      retrieval_set, seed, kind, queries, passages, gold, *pairs, searched
  )


@dataclasses.dataclass(frozen=True)
class Setting:
  """Of what the figures are made.

  Attributes:
    label: of the task.
    split: of the queries.
    sample: of queries and passages.
    steps: of each model's checkpoint, by the model's name.
    mapped: how many queries, and passages, the maps show at most.
  """

  label: str
  split: str
  sample: Sample
  steps: Mapping[str, int]
  mapped: int

  @property
  def where(self) -> str:
    """Data, models and seed, to end a caption with."""
    models = ', '.join(f'{n} (step {step:,})' for n, step in self.steps.items())
    return (
        f'{self.label}, split {self.split}; {models}; seed {self.sample.seed}.'
    )

  def drawn(self, most: int | None = None) -> str:
    """How many queries and passages, and how they were drawn."""
    sample = self.sample
    retrieval_set = sample.retrieval_set
    queries = _part(sample.queries[:most], len(retrieval_set.query_ids))
    passages = _part(sample.passages[:most], len(retrieval_set.corpus))
    relevant = ' (relevant for them)' if sample.kind == RELEVANT else ''
    return f'{queries} queries and {passages} passages{relevant}'

  @property
  def searched(self) -> str:
    """What the best hits were looked for in."""
    whole = len(self.sample.retrieval_set.corpus)
    return f'the {_part(self.sample.searched, whole)} passages'


def _part(rows: np.ndarray, whole: int) -> str:
  count = len(rows)
  return f'{count:,}' if count == whole else f'{count:,} of {whole:,}'
