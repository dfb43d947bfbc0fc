"""Labels that a teacher gives to candidates, by thresholds of probability.

As RocketQA (Qu et al. 2021) and PAIR (Ren et al. 2021) do: what is above the
upper threshold is positive, what is below the lower is a reliable negative, and
what lies between is not used.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.mining.negatives import Negative

POSITIVES = ('best', 'all', 'none')
LABELLED, PSEUDO = 'labelled', 'pseudo'


@dataclasses.dataclass(frozen=True)
class Rules:
  """How candidates are labelled.

  Attributes:
    above: a positive has a probability above it.
    below: a negative has one below it.
    positives: 'best', the most probable one of a query; 'all' of them; 'none',
      where negatives alone are wanted.
    num_negatives: taken of a query, the first in retrieval.
  """

  above: float = 0.9
  below: float = 0.1
  positives: str = 'best'
  num_negatives: int = 4

  def __post_init__(self):
    if not 0 <= self.below <= self.above <= 1:
      raise UserError(
          f'The thresholds are {self.above} and {self.below}; expected'
          ' probabilities, that of positives no lower than that of negatives.'
      )
    if self.positives not in POSITIVES:
      raise UserError(
          f'positives is {self.positives!r}; expected one of'
          f' {", ".join(POSITIVES)}.'
      )


class Candidate(NamedTuple):
  """A passage that a teacher has scored.

  Attributes:
    passage: its number.
    rank: in retrieval, from 1.
    score: the teacher's logit.
    probability: that it is relevant.
  """

  passage: int
  rank: int
  score: float
  probability: float


class Pool(NamedTuple):
  """The candidates of a query, in retrieval order: arrays [n] of the same."""

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
    """Candidates with probabilities."""
    scores = np.array([each.score for each in found], np.float32)
    return cls(
        np.array([each.passage for each in found], np.int64),
        np.array([each.rank for each in found], np.int32),
        scores,
        np.asarray(probabilities(scores), np.float64),
    )

  def __len__(self) -> int:
    return len(self.passages)

  def take(self, rows: np.ndarray) -> list[Candidate]:
    """Some of them."""
    columns = (column[rows].tolist() for column in self)
    return [Candidate(*each) for each in zip(*columns)]


class Labelled(NamedTuple):
  """A query with its labels.

  Attributes:
    query: its number.
    positives: known ones first, then those of the teacher.
    origins: of each of them, 'labelled' or 'pseudo'.
    negatives: in the order of retrieval.
  """

  query: int
  positives: list[Candidate]
  origins: list[str]
  negatives: list[Candidate]


def label(
    query: int,
    known: Sequence[Candidate],
    pool: Pool,
    rules: Rules,
) -> Labelled:
  """Labels the candidates of a query.

  Args:
    query: its number.
    known: its labelled positives.
    pool: its other candidates.
    rules: how.
  """
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


class Agreement(NamedTuple):
  """How labels agree with the truth at two thresholds.

  Attributes:
    above: of positives.
    below: of negatives.
    coverage: share of queries that are written with a pseudo-positive.
    positives: share of judged pseudo-positives that are relevant; NaN for none.
    negatives: share of judged negatives that are not.
    judged: how many of each are judged.
  """

  above: float
  below: float
  coverage: float
  positives: float
  negatives: float
  judged: tuple[int, int]


def agreement(
    pools: Mapping[int, Pool],
    known: Mapping[int, Sequence[Candidate]],
    truth: Callable[[int, int], bool | None],
    rules: Rules,
) -> Agreement:
  """Compares a teacher's labels, those that are written, with the truth.

  Args:
    pools: candidates by query.
    known: labelled positives by query.
    truth: (query, passage) -> whether it is relevant, None if nobody says.
    rules: the thresholds, and which positives.
  """
  right, covered = ([], []), 0
  for query, pool in pools.items():
    found = label(query, known[query], pool, rules)
    if not is_written(found, rules):
      continue
    pseudo = found.positives[len(known[query]) :]
    covered += bool(pseudo)
    for own, wanted, each in (
        (right[0], True, pseudo),
        (right[1], False, found.negatives),
    ):
      judged = [truth(query, c.passage) for c in each]
      own += [value == wanted for value in judged if value is not None]
  shares = [float(np.mean(own)) if own else np.nan for own in right]
  return Agreement(
      rules.above,
      rules.below,
      covered / max(len(pools), 1),
      *shares,
      tuple(map(len, right)),
  )


class Bin(NamedTuple):
  """Judged candidates of a range of probabilities.

  Attributes:
    low: of the range.
    high: of the range.
    count: how many.
    probability: their mean.
    relevant: the share that is relevant.
  """

  low: float
  high: float
  count: int
  probability: float
  relevant: float


def reliability(
    pools: Mapping[int, Pool],
    truth: Callable[[int, int], bool | None],
    bins: int = 10,
) -> list[Bin]:
  """The reliability curve: bins of equal width that have a candidate."""
  found = [
      (probability, value)
      for query, pool in pools.items()
      for passage, probability in zip(
          pool.passages.tolist(), pool.probabilities.tolist()
      )
      if (value := truth(query, passage)) is not None
  ]
  if not found:
    return []
  chances, relevant = np.array(found, float).T
  places = np.minimum((chances * bins).astype(int), bins - 1)
  return [
      Bin(
          i / bins,
          (i + 1) / bins,
          int(inside.sum()),
          float(chances[inside].mean()),
          float(relevant[inside].mean()),
      )
      for i in range(bins)
      if (inside := places == i).any()
  ]


def calibration_error(curve: Sequence[Bin]) -> float:
  """Expected calibration error: the mean distance of curve and diagonal."""
  counts = np.array([each.count for each in curve])
  gaps = np.array([abs(each.probability - each.relevant) for each in curve])
  return float(counts @ gaps / counts.sum())
