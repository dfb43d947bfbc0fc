"""Hard negatives of queries, drawn from the filtered candidates."""

from collections.abc import Iterable, Iterator, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from dualenc_jax.data.text.ragged import fingerprints, Ragged
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining.filters import Kept, stripped

SAMPLING = ('top', 'random')


class Negative(NamedTuple):
  """A hard negative.

  Attributes:
    passage: its number.
    source: name of the first source that has it.
    rank: its rank by that source, from 1.
    score: the score that decided, by the source or a teacher.
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
  each text once. Sampling 'top' takes the first; 'random' draws, by `seed` and
  the query's id alone.
  """
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


def margins(
    kept: Sequence[Kept], chosen: Sequence[Sequence[Negative]]
) -> np.ndarray:
  """A teacher's margins, the labels of GPL (Wang et al. 2022).

  Returns:
    The score of each query's first positive less its negatives': float64 [n],
    of the queries that have a scored positive.
  """
  own = kept[0].candidates.positives
  found = [
      float(first[0]) - negative.score
      for first, negatives in zip(own, chosen)
      if len(first) and not np.isnan(first[0])
      for negative in negatives
  ]
  return np.array(found, np.float64)


def _merged(
    kept: Sequence[Kept], query: int, texts: np.ndarray
) -> list[Negative]:
  by_source = []
  for each in kept:
    places = np.flatnonzero(each.mask[query])
    own = each.candidates
    numbers, scores = own.passages[query, places], own.scores[query, places]
    by_source.append([
        Negative(passage, own.name, rank, score)
        for passage, rank, score in zip(
            numbers.tolist(), (places + 1).tolist(), scores.tolist()
        )
    ])
  merged: dict[int, Negative] = {}
  for turn in itertools.zip_longest(*by_source):
    for negative in turn:
      if negative is not None:
        merged.setdefault(int(texts[negative.passage]), negative)
  return list(merged.values())
