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
import re
from typing import Any, NamedTuple

import numpy as np
import pytrec_eval

from dualenc_jax.data.readers.qrels import LARGEST_GRADE
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils.errors import did_you_mean_or_known, UserError

Qrels = Mapping[str, Mapping[str, int]]

# Every ranking has so many hits; more serve MAP and Recall@1000.
DEPTH = 100
DEEPEST_RECALL = 1000
# Every evaluation has these; others are measured if they are asked for.
STANDARD = (
    'P@1', 'MRR', 'MRR@10', 'nDCG@10', 'MAP',
    'Recall@1', 'Recall@10', 'Recall@100', 'Recall@1000',
)
# trec_eval's measures by our names of them, before the cut. Its reciprocal rank
# has no cut.
_MEASURES = {
    'P': 'P',
    'MRR': 'recip_rank',
    'nDCG': 'ndcg_cut',
    'MAP': 'map_cut',
    'Recall': 'recall',
    'Success': 'success',
}
# Two have a meaning without a cut: here is their measure then.
_WHOLE = {'MRR': 'recip_rank', 'MAP': 'map'}
# Whether an answer is among the first hits: `answer_match` has the code.
_ANSWERS = 'Top'
# Other names of some, in letters of one case.
_ALIASES = {'r': 'Recall', 'precision': 'P', 'hits': 'Success'}
_LOG = logging.getLogger(__name__)


class Metric(NamedTuple):
  """A metric: Recall@20 is ('Recall', 20); a whole ranking has the cut 0."""

  family: str
  cut: int = 0

  @property
  def is_of_answers(self) -> bool:
    """Whether it needs answers, and no judgements."""
    return self.family == _ANSWERS

  @property
  def measure(self) -> str:
    """The measure of pytrec_eval, such as 'recall.20'."""
    if not self.cut or self.family == 'MRR':
      return _WHOLE[self.family]
    return f'{_MEASURES[self.family]}.{self.cut}'

  @property
  def place(self) -> tuple[int, float]:
    """A key to sort by: first the family, then the cut."""
    family = [*_MEASURES, _ANSWERS].index(self.family)
    return family, self.cut or math.inf


def parse(name: str) -> Metric:
  """Parses the name of a metric; raises UserError for one that is none."""
  if name in _WHOLE:
    return Metric(name)
  found = re.fullmatch(f'(?:(\\w+)@|({_ANSWERS})-)([1-9][0-9]{{0,8}})', name)
  if found and (found[2] or found[1] in _MEASURES):
    return Metric(found[2] or found[1], int(found[3]))
  letters, number = re.split(r'[\W\d]', name)[0], re.search(r'\d+', name)
  cut = number[0] if number else '10'
  known = [*_WHOLE, *(f'{own}@{cut}' for own in _MEASURES), f'{_ANSWERS}-{cut}']
  meant = _ALIASES.get(letters.lower())
  near = did_you_mean_or_known(f'{meant}@{cut}' if meant else name, known)
  raise UserError(f'There is no metric {name!r}.{near}')


def parse_names(names: Iterable[str], depth: int) -> tuple[str, ...]:
  """The names of metrics that are asked for, each once.

  Raises:
    UserError: a name that is none, or a cut beyond the `depth` of the rankings.
  """
  names = tuple(dict.fromkeys(names))
  for name in names:
    cut = parse(name).cut
    if cut > depth:
      raise UserError(
          f'--metrics: {name} needs {cut:,} hits a query, but --k gives'
          f' {depth:,}. Give --k={cut}.'
      )
  return names


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
    relevance_level: int = 1, more: Sequence[str] = (),
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
    more: names of metrics beside `STANDARD`.

  Raises:
    UserError: the ranking is too shallow, a grade is beyond `LARGEST_GRADE`, or
      no query has a relevant passage.
  """
  depth = ranking.indices.shape[1]
  check_depth(depth, num_passages, (f'Recall@{DEPTH}', *more))
  counted = [q for q, judged in enumerate(judgements) if judged]
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
  found = evaluate_run(
      run, qrels, relevance_level=relevance_level, more=more
  )
  values = dict(found.values)
  if ranks is not None:
    known = np.asarray(ranks, np.float64)[counted]
    zeros = np.zeros(len(known))
    values['MRR'] = np.divide(1.0, known, where=known > 0, out=zeros)
  elif depth < num_passages:
    del values['MRR']
  for name in STANDARD:
    if depth < min(parse(name).cut, num_passages):
      del values[name]
  return Scores(np.array(counted, np.int64), values)


def evaluate_run(
    run: Mapping[str, dict[str, float]], qrels: Qrels, name: str = 'The run',
    relevance_level: int = 1, more: Sequence[str] = (),
) -> Scores:
  """The metrics of a run file, as by `trec_eval -c -l <relevance_level>`.

  Passages missing from the run count as not found by all metrics. All queries
  of the qrels count; those missing from the run or without a relevant passage
  count as 0; other queries of the run do not count. The gains of nDCG are the
  grades, whatever the least relevant grade.

  Scores are in the order of the qrels, with metrics `more` beside `STANDARD`.
  The log has the run's name.

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
  chosen = {name: parse(name) for name in (*STANDARD, *more)}
  evaluator = pytrec_eval.RelevanceEvaluator(
      judged, {metric.measure for metric in chosen.values()},
      relevance_level=relevance_level,
  )
  by_query = evaluator.evaluate(hits)
  values = {}
  for name, metric in chosen.items():
    theirs = metric.measure.replace('.', '_')
    rows = (by_query.get(query) for query in queries)
    values[name] = np.array([row[theirs] if row else 0.0 for row in rows])
    if metric.family == 'MRR' and metric.cut:
      values[name][values[name] < 1 / metric.cut] = 0.0
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


def check_depth(
    depth: float, num_passages: float, names: Iterable[str],
    what: str = 'the ranking',
) -> None:
  """Raises UserError if `depth` hits a query are too few for these metrics."""
  for name in names:
    needed = min(parse(name).cut, num_passages)
    if depth < needed:
      raise UserError(
          f'{name} needs {needed} hits a query, but {what} gives {depth}: rank'
          ' with a larger k.'
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
