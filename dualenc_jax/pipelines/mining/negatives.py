"""Hard negatives, drawn from the filtered candidates, and their files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import itertools
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.text.ragged import fingerprints, Ragged
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining.filters import (
  FilteredCandidates,
  text_fingerprints,
)
from dualenc_jax.utils import files

SAMPLING = ('top', 'random')
PAIRS, BY_ID = 'pairs.jsonl', 'hard-negatives.jsonl'
FACTS = 'mined.json'


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
    kept: Sequence[FilteredCandidates],
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
  texts, _ = text_fingerprints(ranked)
  for query, name in enumerate(prints):
    pool = _merged(kept, query, texts)
    if sampling == 'random' and len(pool) > count:
      rng = np.random.default_rng((seed, name))
      taken = np.sort(rng.permutation(len(pool))[:count])
      pool = [pool[i] for i in taken.tolist()]
    yield pool[:count]


def with_scores(
    chosen: Iterable[Sequence[Negative]], kept: Sequence[FilteredCandidates]
) -> Iterator[list[Negative]]:
  """Yields the same hard negatives with the scores of `score_chosen`."""
  by_name = {each.candidates.name: each.candidates for each in kept}
  for query, own in enumerate(chosen):
    yield [
        n._replace(score=float(by_name[n.source].scores[query, n.rank - 1]))
        for n in own
    ]


def margins(
    kept: Sequence[FilteredCandidates], chosen: Sequence[Sequence[Negative]]
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
    kept: Sequence[FilteredCandidates], query: int, texts: np.ndarray
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


def write_files(
    folder: pathlib.Path,
    ranked: RetrievalSet,
    kept: Sequence[FilteredCandidates],
    chosen: Sequence[Sequence[Negative]],
    by_teacher: bool,
    facts: Mapping[str, Any],
) -> None:
  """Writes training pairs, hard negatives by id, and the facts with counts.

  Args:
    folder: an existing one.
    ranked: queries and corpus.
    kept: candidates of each source.
    chosen: hard negatives of each query.
    by_teacher: whether scores are a teacher's, which are written to learn from.
    facts: values that the files depend on.
  """
  counts = {each.candidates.name: each.counts for each in kept}
  # Written first: a killed run would leave files without their description.
  files.write_json(folder / FACTS, {**facts, 'counts': counts})
  # A teacher's scores of positives are the same for all sources.
  scores = kept[0].candidates.positives if by_teacher else None
  files.write_json_lines(folder / PAIRS, _pairs(ranked, chosen, scores))
  files.write_json_lines(folder / BY_ID, _by_id(ranked, chosen, scores))


def _pairs(
    ranked: RetrievalSet, chosen: Sequence[Sequence[Negative]],
    scores: Sequence[np.ndarray] | None,
) -> Iterator[dict[str, Any]]:
  """Rows of `tasks/pairs.gin`, one a query that has a positive."""
  corpus, queries = ranked.corpus, ranked.query_texts
  for query, positives in enumerate(ranked.gold):
    if not positives:
      continue
    row = {
        'query_id': ranked.query_ids[query],
        'query': queries[query],
        'passage_id': [corpus.ids[p] for p in positives],
        'passage': [corpus.texts[p] for p in positives],
        'negatives': [corpus.texts[n.passage] for n in chosen[query]],
    }
    if scores is not None:
      row['positive_scores'] = scores[query].tolist()
      row['negative_scores'] = [n.score for n in chosen[query]]
    yield row


def _by_id(
    ranked: RetrievalSet, chosen: Sequence[Sequence[Negative]],
    scores: Sequence[np.ndarray] | None,
) -> Iterator[dict[str, Any]]:
  """Rows in the form of sentence-transformers and GPL."""
  ids = ranked.corpus.ids

  def entry(passage: int, score: float) -> Any:
    name = ids[passage]
    return name if scores is None else {'pid': name, 'ce-score': score}

  for query, (positives, negatives) in enumerate(zip(ranked.gold, chosen)):
    if not negatives:
      continue
    own = [0.0] * len(positives) if scores is None else scores[query].tolist()
    by_source: dict[str, list[Any]] = {}
    for n in negatives:
      by_source.setdefault(n.source, []).append(entry(n.passage, n.score))
    yield {
        'qid': ranked.query_ids[query],
        'pos': list(map(entry, positives, own)),
        'neg': by_source,
    }


def summary(chosen: Sequence[Sequence[Negative]]) -> str:
  """The number of hard negatives and of the queries that have some."""
  return (
      f'{sum(map(bool, chosen)):,} of {len(chosen):,} queries have hard'
      f' negatives, {sum(map(len, chosen)):,} in all.'
  )


def count_table(kept: Sequence[FilteredCandidates]) -> Iterator[str]:
  """A table of how many candidates each rule left out, a column a source."""
  names = [each.candidates.name for each in kept]
  yield f'| | {" | ".join(names)} |'
  yield '|---' * (len(names) + 1) + '|'
  for what in dict.fromkeys(what for each in kept for what in each.counts):
    cells = (f'{each.counts.get(what, 0):,}' for each in kept)
    yield f'| {what} | {" | ".join(cells)} |'
