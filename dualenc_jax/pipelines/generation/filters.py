"""Filters of generated queries by their text."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import math

from dualenc_jax.data.text.words import words
from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.utils.errors import expect

EMPTY, UNLIKELY = 'empty', 'below the log-probability'
REPEATED, COPIED = 'repeated for their passage', 'copied from their passage'


@dataclasses.dataclass(frozen=True)
class Rules:
  """Bounds of a query.

  Attributes:
    copied: largest share of its words that is one span of the passage; 1.0 for
      no bound.
    log_probability: least mean log-probability of its tokens, by which InPars
      (Bonifacio et al. 2022) ranks queries; None for no bound.
  """

  copied: float = 1.0
  log_probability: float | None = None

  def __post_init__(self):
    share, least = self.copied, self.log_probability
    expect(
        0 < share <= 1, '--max_copied', share, 'a share above 0, at most 1'
    )
    expect(
        least is None or least <= 0, '--min_log_probability', least,
        'a logarithm, 0 or less',
    )


def kept(
    queries: Iterable[Query],
    passage: Callable[[int], str],
    rules: Rules,
    counts: Counter[str],
) -> Iterator[Query]:
  """Yields the queries within the rules, none empty or twice of a passage.

  Args:
    queries: in the order of their passages.
    passage: number -> text.
    rules: the bounds.
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
      counts[EMPTY] += 1
    elif key in seen:
      counts[REPEATED] += 1
    elif (
        rules.log_probability is not None
        and query.log_probability < rules.log_probability
    ):
      counts[UNLIKELY] += 1
    else:
      seen.add(key)
      if rules.copied < 1:
        text = text or f' {" ".join(words(passage(number)))} '
        if is_copied(words(query.text), text, rules.copied):
          counts[COPIED] += 1
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
