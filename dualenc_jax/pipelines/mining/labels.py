"""Labels that a teacher gives to candidates, by thresholds of probability.

As RocketQA (Qu et al. 2021) and PAIR (Ren et al. 2021) do: what is above the
upper threshold is positive, what is below the lower is a reliable negative, and
what lies between is not used.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining.filters import Kept
from dualenc_jax.pipelines.mining.negatives import choose, Negative
from dualenc_jax.utils.errors import UserError

POSITIVES = ('best', 'all', 'none')
LABELLED, PSEUDO = 'labelled', 'pseudo'
# (query, passage) -> whether it is relevant; None where nobody judged it.
Truth = Callable[[int, int], bool | None]


@dataclasses.dataclass(frozen=True)
class Rules:
  """Thresholds, and what is taken of a query.

  Attributes:
    above: least probability of a positive, excluded.
    below: largest probability of a negative, excluded.
    positives: 'best', the most probable one; 'all'; or 'none'.
    num_negatives: the first in retrieval.
  """

  above: float = 0.9
  below: float = 0.1
  positives: str = 'best'
  num_negatives: int = 4

  def __post_init__(self):
    if not 0 <= self.below <= self.above <= 1:
      raise UserError(
          f'The thresholds are {self.above} and {self.below}; expected'
          ' probabilities, the first (for positives) not below the second (for'
          ' negatives).'
      )


class Candidate(NamedTuple):
  """A passage, its rank in retrieval from 1, and the teacher's judgement."""

  passage: int
  rank: int
  score: float
  probability: float


class Pool(NamedTuple):
  """The candidates of a query in retrieval order, arrays [n]."""

  passages: np.ndarray
  ranks: np.ndarray
  scores: np.ndarray
  probabilities: np.ndarray

  @classmethod
  def of(
      cls,
      found: Sequence[Negative],
      probabilities: Callable[[np.ndarray], np.ndarray],
  ) -> 'Pool':
    scores = np.array([each.score for each in found], np.float32)
    passages = np.array([each.passage for each in found], np.int64)
    ranks = np.array([each.rank for each in found], np.int32)
    chances = np.asarray(probabilities(scores), np.float64)
    return cls(passages, ranks, scores, chances)

  def __len__(self) -> int:
    return len(self.passages)

  def take(self, rows: np.ndarray) -> list[Candidate]:
    columns = (column[rows].tolist() for column in self)
    return [Candidate(*each) for each in zip(*columns)]


class Labelled(NamedTuple):
  """A query with its labels.

  Attributes:
    query: its number.
    positives: known ones first, then the teacher's.
    origins: of each positive, 'labelled' or 'pseudo'.
    negatives: in the order of retrieval.
  """

  query: int
  positives: list[Candidate]
  origins: list[str]
  negatives: list[Candidate]


def label(
    query: int, known: Sequence[Candidate], pool: Pool, rules: Rules
) -> Labelled:
  """Labels the candidates of a query other than its known positives."""
  above = np.flatnonzero(pool.probabilities > rules.above)
  if rules.positives == 'best' and len(above):
    above = above[[pool.probabilities[above].argmax()]]
  if rules.positives == 'none':
    above = above[:0]
  below = np.flatnonzero(pool.probabilities < rules.below)
  return Labelled(
      query,
      [*known, *pool.take(above)],
      [LABELLED] * len(known) + [PSEUDO] * len(above),
      pool.take(below[: rules.num_negatives]),
  )


def is_written(labelled: Labelled, rules: Rules) -> bool:
  """Whether there is something to learn: a query without labels needs both."""
  if LABELLED in labelled.origins:
    return True
  return bool(
      labelled.positives and (labelled.negatives or not rules.num_negatives)
  )


class Labels(NamedTuple):
  """The labels of the queries that have something to train on, and counts.

  By query, without those of evaluation splits: `pools` of candidates, and
  labelled positives that are `known`, with the teacher's scores.
  """

  pools: Mapping[int, Pool]
  known: Mapping[int, Sequence[Candidate]]
  written: Sequence[Labelled]
  counts: Mapping[str, int]


def label_all(
    kept: Sequence[Kept], ranked: RetrievalSet, dropped: np.ndarray,
    rules: Rules, probabilities: Callable[[np.ndarray], np.ndarray],
) -> Labels:
  """Labels the candidates of every query.

  Args:
    kept: candidates of each source, with the teacher's scores.
    ranked: the queries, their known positives and the corpus.
    dropped: bool [Q], queries that evaluation splits have.
    rules: thresholds.
    probabilities: of logits.
  """
  own_scores, gold = kept[0].candidates.positives, ranked.gold
  depths = [each.mask.shape[1] for each in kept]
  chosen = choose(kept, ranked, sum(depths))
  pools, known = {}, {}
  for query, pool in enumerate(chosen):
    if not dropped[query]:
      own = own_scores[query]
      pools[query] = Pool.of(pool, probabilities)
      known[query] = [
          Candidate(passage, 0, float(score), float(chance))
          for passage, score, chance in zip(
              gold[query], own, probabilities(own)
          )
      ]
  everything = [
      label(query, known[query], pool, rules)
      for query, pool in pools.items()
  ]
  written = [each for each in everything if is_written(each, rules)]
  counts = {
      'queries': len(dropped),
      'queries_of_evaluation_splits': int(dropped.sum()),
      'queries_without_other_candidates': sum(
          not len(pool) for pool in pools.values()
      ),
      'queries_without_a_positive': sum(not x.positives for x in everything),
      'queries_without_a_negative': sum(not x.negatives for x in everything),
      'queries_written': len(written),
      'pseudo_positives': sum(x.origins.count(PSEUDO) for x in written),
      'negatives': sum(len(x.negatives) for x in written),
      'known_positives_below_the_lower_threshold': sum(
          c.probability < rules.below for own in known.values() for c in own
      ),
  }
  return Labels(pools, known, written, counts)


def check_logits(kept: Sequence[Kept]) -> None:
  """Raises UserError for scores that look like probabilities."""
  every = [each.candidates.scores[each.mask] for each in kept]
  found = np.concatenate([*every, *kept[0].candidates.positives])
  found = found[~np.isnan(found)]
  if len(found) and 0 <= found.min() < found.max() <= 1:
    raise UserError(
        f'All {len(found):,} scores of the teacher are from 0 to 1, like'
        ' probabilities, but --calibration=1,0 is for logits. Give'
        ' log(p / (1 - p)) in place of a probability p.'
    )


def truth_of(path: str, ranked: RetrievalSet, least: int) -> Truth:
  """Whether a passage is relevant, by a file of qrels.

  A grade of `least` or more is relevant. Where the file has lower ones, what it
  does not judge is unknown; else it names all that is relevant.
  """
  qrels = trec.read_qrels(path)
  if not qrels.keys() & {*ranked.query_ids}:
    raise UserError(
        f'{path} judges none of the queries, such as'
        f' {ranked.query_ids[0]!r}. Is it of another data set?'
    )
  graded = any(g < least for own in qrels.values() for g in own.values())
  unjudged, ids = None if graded else False, ranked.corpus.ids

  def truth(query: int, passage: int) -> bool | None:
    judged = qrels.get(ranked.query_ids[query])
    grade = None if judged is None else judged.get(ids[passage])
    if grade is None:
      return None if judged is None else unjudged
    return grade >= least

  return truth


class Agreement(NamedTuple):
  """How labels agree with the truth at two thresholds.

  Attributes:
    coverage: share of queries that are written with a pseudo-positive.
    positives: share of judged pseudo-positives that are relevant; NaN for none.
    negatives: share of judged negatives that are not relevant; NaN for none.
    judged: numbers of judged pseudo-positives and negatives.
  """

  coverage: float
  positives: float
  negatives: float
  judged: tuple[int, int]


def agreement(
    pools: Mapping[int, Pool],
    known: Mapping[int, Sequence[Candidate]],
    truth: Truth,
    rules: Rules,
) -> Agreement:
  """Compares the labels that are written with the truth."""
  positives: list[bool] = []
  negatives: list[bool] = []
  covered = 0
  for query, pool in pools.items():
    found = label(query, known[query], pool, rules)
    if not is_written(found, rules):
      continue
    pseudo = found.positives[len(known[query]) :]
    covered += bool(pseudo)
    for own, wanted, each in (
        (positives, True, pseudo), (negatives, False, found.negatives)
    ):
      judged = [truth(query, c.passage) for c in each]
      own += [value == wanted for value in judged if value is not None]
  return Agreement(
      covered / max(len(pools), 1),
      float(np.mean(positives)) if positives else np.nan,
      float(np.mean(negatives)) if negatives else np.nan,
      (len(positives), len(negatives)),
  )
