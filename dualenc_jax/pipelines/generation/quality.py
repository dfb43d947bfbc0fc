"""Quality of generated queries: which ones a retriever can learn from.
Filters of single queries by their text, reasons to refuse all queries of a
generator, and the rate at which BM25 finds the passages of queries.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
import math
from typing import NamedTuple

import numpy as np

from dualenc_jax.data.text.words import words
from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.utils.errors import UserError

# A generator is refused by so large a share of its queries, of so many at
# least, plus two standard errors.
_MOST, _JUDGED = 0.5, 20
# BM25 looks for the passages of so many queries among so many passages.
_QUERIES, _PASSAGES = 1_000, 10_000
DEPTH = 10
# The queries of docT5query are found several times as often.
_LEAST_FOUND = 0.25


def keep(
    queries: Iterable[Query], passage: Callable[[int], str], max_copied: float,
    counts: Counter[str],
) -> Iterator[Query]:
  """Yields queries, without those that are empty, repeated or copied.

  Args:
    queries: in the order of their passages.
    passage: number -> text.
    max_copied: largest share of a query's words that is one span of its
      passage; 1.0 for no bound.
    counts: queries left out by cause, updated.
  """
  number: int | None = None
  seen: set[str] = set()
  text = ''
  for query in queries:
    if query.passage != number:
      number, seen, text = query.passage, set(), ''
    key = ' '.join(words(query.text)) or query.text
    if not query.text:
      counts['empty'] += 1
      continue
    if key in seen:
      counts['repeated for their passage'] += 1
      continue
    seen.add(key)
    if max_copied < 1:
      text = text or f' {" ".join(words(passage(number)))} '
      if is_copied(words(query.text), text, max_copied):
        counts['copied from their passage'] += 1
        continue
    yield query


def is_copied(query: Sequence[str], passage: str, share: float) -> bool:
  """Whether more than a share of a query's words is one span of a passage.

  The passage is given as its words with a space before, between and after them.
  """
  # Words of the shortest span that is too long.
  size = math.floor(share * len(query)) + 1
  return any(
      f' {" ".join(query[start : start + size])} ' in passage
      for start in range(len(query) - size + 1)
  )


def find_problem(pairs: Sequence[tuple[str, str]]) -> str | None:
  """Why a retriever cannot learn from (query, passage) pairs, or None."""
  count = len(pairs)
  if count < _JUDGED:
    return None
  most = _MOST + 1 / math.sqrt(count)
  empty = sum(not query for query, _ in pairs) / count
  if empty > most:
    return (
        f'{empty:.0%} of {count:,} queries are empty: the generator has not'
        ' learnt to write. Train it longer, or give another.'
    )
  (text, times), = Counter(query for query, _ in pairs).most_common(1)
  several = len({passage for _, passage in pairs}) > 1
  if several and times / count > most:
    return (
        f'{times / count:.0%} of {count:,} queries are {text!r}, whatever the'
        ' passage says: the generator does not read it. Train it longer, or'
        ' give another.'
    )
  copied = sum(
      is_copied(words(query), f' {" ".join(words(passage))} ', 0.8)
      for query, passage in pairs
  )
  if copied / count > most:
    return (
        f'{copied / count:.0%} of {count:,} queries are copied from their'
        ' passage: the generator has not learnt to ask. Train it longer, or'
        ' give another.'
    )
  return None


class SelfRetrieval(NamedTuple):
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
    if self.share >= _LEAST_FOUND or self.chance >= _LEAST_FOUND:
      return None
    return (
        f'WARNING: BM25 finds the passage of {self.share:.1%} of the queries'
        f' among its best {DEPTH} of {self.passages:,} (chance:'
        f' {self.chance:.1%}): they may have little to do with their passages,'
        ' and harm. Look at the examples.'
    )


def self_retrieval(
    passages: Sequence[str], queries: Sequence[Query]
) -> SelfRetrieval | None:
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
    # Equal scores have any order with the same probability.
    left = DEPTH - np.sum(scores > score)
    total += float(np.clip(left / np.sum(scores == score), 0.0, 1.0))
  return SelfRetrieval(total / len(chosen), len(chosen), len(numbers))
