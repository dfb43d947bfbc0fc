"""Retrieval metrics by trec_eval's code: of a ranking, and of a run file.

trec_eval reads scores as float32 and orders hits by them, highest first, and
equal ones by passage id, greatest first. Run files are left to that rule. A
ranking of this package is ordered already: places stand for its scores and ids,
so that every metric reads the one order that was computed.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import logging
import math
from typing import Any

import numpy as np
import pytrec_eval

from dualenc_jax.data.readers.qrels import LARGEST_GRADE
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils.errors import UserError

Qrels = Mapping[str, Mapping[str, int]]

# Every ranking has so many hits; more serve MAP and Recall@1000.
DEPTH = 100
DEEPEST_RECALL = 1000

_MEASURES = ('P.1', 'recip_rank', 'ndcg_cut.10', 'map', 'recall.1,10,100,1000')
# trec_eval's names of ours. Its reciprocal rank has no cut.
_THEIR_NAMES = {
    'P@1': 'P_1',
    'MRR': 'recip_rank',
    'MRR@10': 'recip_rank',
    'nDCG@10': 'ndcg_cut_10',
    'MAP': 'map',
    'Recall@1': 'recall_1',
    'Recall@10': 'recall_10',
    'Recall@100': 'recall_100',
    'Recall@1000': 'recall_1000',
}
_LOG = logging.getLogger(__name__)
_NOTHING = dict.fromkeys(_THEIR_NAMES.values(), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
  """Metrics of each of J queries that count.

  Attributes:
    queries: int64 positions in a retrieval set, or ids.
    values: float64 [J] by name of metric, NaN where it does not apply to the
      query. MRR has the reciprocal rank.
  """

  queries: Any
  values: Mapping[str, np.ndarray]

  def column(self, metric: str) -> dict[Any, float]:
    """The values of a metric by query, of those that it applies to."""
    pairs = zip(self.queries, self.values[metric].tolist())
    return {query: value for query, value in pairs if not math.isnan(value)}

  def means(self) -> dict[str, float]:
    """The mean of each metric, by exact sums: the order does not matter."""
    columns = {name: self.column(name).values() for name in self.values}
    return {name: math.fsum(own) / len(own) for name, own in columns.items()}

  def joined(self, other: 'Scores') -> 'Scores':
    """These metrics and others, of other queries perhaps."""
    queries = np.union1d(self.queries, other.queries)
    values = {}
    for part in (self, other):
      places = np.searchsorted(queries, part.queries)
      for metric, own in part.values.items():
        values[metric] = np.full(len(queries), np.nan)
        values[metric][places] = own
    return Scores(queries, values)


def score(
    ranking: Ranking, judgements: Sequence[Mapping[int, int]],
    num_passages: int, ranks: np.ndarray | None = None,
    relevance_level: int = 1,
) -> Scores:
  """The metrics of a ranking.

  Judged queries without a relevant passage count as 0, as in trec_eval, and
  their number is logged; other queries do not count. MAP covers the hits. MRR
  covers the whole corpus, and is absent if neither ranking nor `ranks` does.
  Recall@1000 is absent if the ranking has fewer hits of a larger corpus.

  Args:
    ranking: [Q, k] hits with k at least min(100, num_passages).
    judgements: for each of the Q queries the grades of its judged passages by
      row of the corpus. Passages missing from the corpus have negative rows,
      -1, -2 and so on; they count in recall, MAP and the ideal DCG.
    num_passages: number of passages that each query is ranked over.
    ranks: int64 [Q] from `ExactSearch.gold_ranks`, 0 where no relevant passage
      is in the corpus.
    relevance_level: the least grade of a relevant passage.

  Raises:
    UserError: the ranking is too shallow, a grade is beyond `LARGEST_GRADE`, or
      no query has a relevant passage.
  """
  check_depth(ranking, num_passages)
  counted = [q for q, judged in enumerate(judgements) if judged]
  depth = ranking.indices.shape[1]
  # Ids that ascend as the places do: trec_eval sorts them fastest so.
  digits = len(str(depth))
  names = [f'{place:0{digits}}' for place in range(depth)]
  qrels = {
      str(q): _by_place(ranking.indices[q], judgements[q], names)
      for q in counted
  }
  # All queries share one run. trec_eval keeps scores in float32, which holds
  # integers to 2^24 exactly.
  hits = {name: float(depth - place) for place, name in enumerate(names)}
  run = dict.fromkeys(qrels, hits)
  found = evaluate_run(run, qrels, relevance_level=relevance_level)
  values = dict(found.values)
  if ranks is not None:
    known = np.asarray(ranks, np.float64)[counted]
    zeros = np.zeros(len(known))
    values['MRR'] = np.divide(1.0, known, where=known > 0, out=zeros)
  elif depth < num_passages:
    del values['MRR']
  if depth < min(DEEPEST_RECALL, num_passages):
    del values['Recall@1000']
  return Scores(np.array(counted, np.int64), values)


def evaluate_run(
    run: Mapping[str, dict[str, float]], qrels: Qrels, name: str = 'The run',
    relevance_level: int = 1,
) -> Scores:
  """The metrics of a run file, as by `trec_eval -c -l <relevance_level>`.

  Passages missing from the run count as not found by all metrics. All queries
  of the qrels count; those missing from the run or without a relevant passage
  count as 0; other queries of the run do not count. The gains of nDCG are the
  grades, whatever the least relevant grade.

  Scores are in the order of the qrels. The log has the run's name.

  Raises:
    UserError: a grade is beyond `LARGEST_GRADE`, or no query of the run has a
      relevant passage.
  """
  for query, grades in qrels.items():
    for item, grade in grades.items():
      if abs(grade) > LARGEST_GRADE:
        raise UserError(
            f'query {query!r} has passage {item!r} of grade {grade}; expected'
            f' -{LARGEST_GRADE:,} to {LARGEST_GRADE:,}, as trec_eval counts.'
        )
  judged = {q: dict(grades) for q, grades in qrels.items() if _relevant(grades)}
  answerable = [q for q in judged if _relevant(judged[q], relevance_level)]
  hits = {q: run[q] for q in judged if q in run}
  if hits.keys().isdisjoint(answerable):
    raise _none_relevant(qrels.values(), relevance_level)
  queries = [q for q, grades in qrels.items() if grades]
  if unanswerable := len(queries) - len(answerable):
    _LOG.warning(
        'Judged queries without a relevant passage, which count as 0, as in'
        ' trec_eval -c: %d.', unanswerable,
    )
  if missing := len([q for q in queries if q not in run]):
    _LOG.warning(
        '%s: %d of the %d judged queries were not ranked and count as 0.',
        name, missing, len(queries),
    )
  evaluator = pytrec_eval.RelevanceEvaluator(
      judged, _MEASURES, relevance_level=relevance_level
  )
  by_query = evaluator.evaluate(hits)
  rows = [by_query.get(query, _NOTHING) for query in queries]
  values = {
      name: np.array([row[theirs] for row in rows])
      for name, theirs in _THEIR_NAMES.items()
  }
  values['MRR@10'][values['MRR@10'] < 1 / 10] = 0.0
  return Scores(queries, values)


def _relevant(judged: Mapping[Any, int], level: int = 1) -> bool:
  """Whether a passage is relevant; without one trec_eval may crash."""
  return any(grade >= level for grade in judged.values())


def _by_place(
    hits: np.ndarray, judged: Mapping[int, int], names: Sequence[str]
) -> dict[str, int]:
  """The grades of a query by name of the hit's place, or a name of no hit."""
  rows = np.fromiter(judged, np.int64, len(judged))
  # A row of -1 is no hit here, and a passage that is missing there.
  places = np.flatnonzero(np.isin(hits, rows) & (hits >= 0)).tolist()
  name_of = {hits[place]: names[place] for place in places}
  return {
      name_of.get(row, f'row {row}'): grade for row, grade in judged.items()
  }


def check_depth(ranking: Ranking, num_passages: int) -> None:
  """Raises UserError if a ranking is too shallow for all metrics."""
  depth = ranking.indices.shape[1]
  if depth < min(DEPTH, num_passages):
    raise UserError(
        f'Recall@100 needs {min(DEPTH, num_passages)} hits a query, but the '
        f'ranking holds {depth}: rank with a larger k.'
    )


def _none_relevant(
    judgements: Iterable[Mapping[Any, int]], level: int
) -> UserError:
  """The error that no ranked query has a passage of a relevant grade."""
  highest = max((max(own.values()) for own in judgements if own), default=level)
  if highest < level:
    return UserError(
        f'no grade of the qrels is above {highest}, but relevant passages have'
        f' {level} or more. Give another --relevance_level or other qrels.'
    )
  return UserError(
      'none of the ranked queries has a relevant passage in the qrels. Are they'
      ' of the same data set?'
  )
