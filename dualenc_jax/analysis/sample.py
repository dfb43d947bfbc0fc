"""The sample of queries and passages that an analysis embeds."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from dualenc_jax.data import Tokenizer
from dualenc_jax.data.corpus import describe
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet

# Fewer do not make a map, nor folds to classify in.
FEWEST = 10
RANDOM = 'random'
RELEVANT = 'relevant'
# No text has more tokens.
_UNLIMITED = 2**30


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
    """Whether there are enough positive pairs for numbers of them."""
    return len(self.pair_queries) >= FEWEST

  def query_id(self, position: int) -> str:
    return self.retrieval_set.query_ids[self.queries[position]]

  def passage_id(self, position: int) -> str:
    return self.retrieval_set.corpus.ids[self.passages[position]]

  def query_texts(self, most: int | None = None) -> list[str]:
    texts = self.retrieval_set.query_texts
    return [texts[row] for row in self.queries[:most]]

  def passage_texts(self, most: int | None = None) -> list[str]:
    texts = self.retrieval_set.corpus.texts
    return [texts[row] for row in self.passages[:most]]

  def token_counts(self, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Tokens of queries [n] and passages [m], EOS included, nothing cut."""
    counts = {}
    for side, prefix, texts in (
        ('queries', tokenizer.query_prefix, self.query_texts()),
        ('passages', tokenizer.passage_prefix, self.passage_texts()),
    ):
      texts = [prefix + text for text in texts]
      counts[side] = tokenizer.vocabulary.encode(texts, _UNLIMITED).lengths
    return counts


def draw(
    retrieval_set: RetrievalSet, size: int, kind: str = RANDOM, seed: int = 0,
    max_passages: int | None = None,
) -> Sample:
  """Draws at most `size` queries and as many passages.

  The same for every model, as it depends on the data and the seed only.

  Args:
    retrieval_set: queries and a corpus.
    size: most of each.
    kind: `RANDOM` passages of the corpus, as in the papers' maps, or `RELEVANT`
      ones of the queries, one each.
    seed: of the draws.
    max_passages: search only so many passages, drawn at random, and those that
      are relevant for the queries; None for the whole corpus.

  Raises:
    UserError: fewer than `FEWEST` queries or passages, or no relevant ones.
  """
  rng = np.random.default_rng(seed)
  count, all_gold = len(retrieval_set.corpus), retrieval_set.gold
  queries = rng.permutation(len(all_gold))[:size]
  gold = [all_gold[q] for q in queries]
  pair_queries = np.flatnonzero([len(rows) for rows in gold])
  pair_passages = np.array(
      [rng.choice(gold[q]) for q in pair_queries], np.int64
  )
  part = np.arange(count)
  if max_passages is not None and max_passages < count:
    part = rng.choice(count, max_passages, replace=False)
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
  return Sample(
      retrieval_set, seed, kind, queries, passages, gold, pair_queries,
      pair_passages, searched=np.union1d(part, pair_passages),
  )
