"""Choice of the generated queries that a retriever can learn from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import math

from dualenc_jax.data.text.words import words
from dualenc_jax.pipelines.generation.generator import Query

# A generator is refused by so large a share of its queries, of so many at
# least, plus two standard errors.
_MOST, _JUDGED = 0.5, 20


def keep(queries: Iterable[Query], counts: Counter[str]) -> Iterator[Query]:
  """Yields queries, without those that are empty or repeated.

  Args:
    queries: in the order of their passages.
    counts: queries left out by cause, updated.
  """
  seen: set[tuple[int, str]] = set()
  for query in queries:
    key = query.passage, ' '.join(words(query.text)) or query.text
    if not query.text:
      counts['empty'] += 1
    elif key in seen:
      counts['repeated for their passage'] += 1
    else:
      seen.add(key)
      yield query


def find_problem(pairs: Sequence[tuple[str, str]]) -> str | None:
  """Why a retriever cannot learn from (query, passage) pairs, or None."""
  count = len(pairs)
  if count < _JUDGED:
    return None
  (text, times), = Counter(query for query, _ in pairs).most_common(1)
  several = len({passage for _, passage in pairs}) > 1
  if (several or not text) and times / count > _MOST + 1 / math.sqrt(count):
    return (
        f'{times / count:.0%} of {count:,} queries are {text!r}, whatever the'
        ' passage says: the generator has not learnt to write queries. Train it'
        ' longer, or give another.'
    )
  return None
