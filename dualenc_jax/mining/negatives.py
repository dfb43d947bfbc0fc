"""Hard negatives of queries, taken from what sources have left."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.mining.filters import Kept, stripped
from dualenc_jax.text.ragged import fingerprints, Ragged

SAMPLING = ('top', 'random')


class Negative(NamedTuple):
  """A hard negative.

  Attributes:
    passage: its number.
    source: whose candidate it is, the first of several.
    rank: in that source's ranking, from 1.
    score: the one that decided, the source's or a teacher's.
  """

  passage: int
  source: str
  rank: int
  score: float


def choose(
    kept: Sequence[Kept],
    ranked: RetrievalSet,
    count: int,
    sampling: str = 'top',
    seed: int = 0,
) -> Iterator[list[Negative]]:
  """Yields at most `count` hard negatives of each query, best first.

  The best of each source come first, then the second best of each, and so on;
  each text once.

  Args:
    kept: of each source.
    ranked: what they are of.
    count: how many are taken.
    sampling: 'top', the first; 'random', any, which seed and query id alone
      decide.
    seed: of the sampling.
  """
  if sampling not in SAMPLING:
    raise UserError(
        f'The sampling is {sampling!r}; expected one of {", ".join(SAMPLING)}.'
    )
  prints = fingerprints(Ragged.from_texts(ranked.query_ids)).tolist()
  texts, _ = stripped(ranked)
  for query, name in enumerate(prints):
    pool = _merged(kept, query, texts)
    if sampling == 'random' and len(pool) > count:
      rng = np.random.default_rng((seed, name))
      taken = np.sort(rng.permutation(len(pool))[:count])
      pool = [pool[i] for i in taken.tolist()]
    yield pool[:count]


def scored(
    chosen: Iterable[Sequence[Negative]], kept: Sequence[Kept]
) -> Iterator[list[Negative]]:
  """Yields the same hard negatives with the scores of `filters.scored`."""
  by_name = {each.candidates.name: each.candidates for each in kept}
  for query, own in enumerate(chosen):
    yield [
        n._replace(score=float(by_name[n.source].scores[query, n.rank - 1]))
        for n in own
    ]


def _merged(
    kept: Sequence[Kept], query: int, texts: np.ndarray
) -> list[Negative]:
  found = []
  for order, each in enumerate(kept):
    places = np.flatnonzero(each.mask[query]).tolist()
    own = each.candidates
    found += [
        (
            turn,
            order,
            Negative(
                int(own.passages[query, place]),
                own.name,
                place + 1,
                float(own.scores[query, place]),
            ),
        )
        for turn, place in enumerate(places)
    ]
  merged = {}
  for _, _, negative in sorted(found, key=lambda entry: entry[:2]):
    merged.setdefault(int(texts[negative.passage]), negative)
  return list(merged.values())
