"""The rate at which BM25 finds the passages of generated queries."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.utils.errors import UserError

DEPTH = 10
# Of queries, and of passages among which theirs are looked for.
_QUERIES, _PASSAGES = 1_000, 10_000
# Queries of docT5query are found several times as often.
LEAST = 0.25


class Found(NamedTuple):
  """The share of sampled queries whose passage is among BM25's best.

  Attributes:
    share: 0 to 1.
    queries: number of sampled queries.
    passages: number of passages searched, theirs and others.
  """

  share: float
  queries: int
  passages: int

  @property
  def chance(self) -> float:
    """The share of queries that are unrelated to any passage."""
    return min(DEPTH / self.passages, 1.0)

  @property
  def warning(self) -> str | None:
    """A sentence for shares near chance."""
    if self.share >= LEAST or self.chance >= LEAST:
      return None
    return (
        f'WARNING: BM25 finds the passage of {self.share:.1%} of the queries'
        f' among its best {DEPTH} of {self.passages:,} (chance:'
        f' {self.chance:.1%}): they may have little to do with their passages,'
        ' and harm. Look at the examples; --round_trip leaves out what a model'
        ' does not find.'
    )


def found(passages: Sequence[str], queries: Sequence[Query]) -> Found | None:
  """Looks for the passages of some queries; None where no text has a word."""
  rng = np.random.default_rng(0)
  chosen = [queries[i] for i in rng.permutation(len(queries))[:_QUERIES]]
  own = {query.passage for query in chosen}
  others = [i for i in rng.permutation(len(passages)).tolist() if i not in own]
  numbers = [*sorted(own), *others[: max(_PASSAGES - len(own), 0)]]
  try:
    index = BM25([passages[i] for i in numbers])
  except UserError:
    return None
  place = {number: i for i, number in enumerate(numbers)}
  total = 0.0
  for query in chosen:
    scores = index.scores(query.text)
    score = scores[place[query.passage]]
    if not score:  # Not retrieved.
      continue
    # Of equal scores any order is as likely.
    left = DEPTH - np.sum(scores > score)
    total += float(np.clip(left / np.sum(scores == score), 0.0, 1.0))
  return Found(total / len(chosen), len(chosen), len(numbers))
