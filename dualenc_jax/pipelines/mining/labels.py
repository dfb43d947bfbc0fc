"""Labels that a teacher gives to candidates, by thresholds of probability.

As RocketQA (Qu et al. 2021) and PAIR (Ren et al. 2021) do: what is above the
upper threshold is positive, what is below the lower is a reliable negative, and
what lies between is not used.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from dualenc_jax.pipelines.mining.negatives import Negative
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


class Bin(NamedTuple):
  """Judged candidates with probabilities from `low` to `high`.

  Attributes:
    number: of candidates.
    probability: their mean.
    relevant: share of them that is relevant.
  """

  low: float
  high: float
  number: int
  probability: float
  relevant: float


def reliability(
    pools: Mapping[int, Pool],
    truth: Truth,
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
  curve = []
  for i in np.unique(places).tolist():
    inside = places == i
    means = float(chances[inside].mean()), float(relevant[inside].mean())
    curve.append(Bin(i / bins, (i + 1) / bins, int(inside.sum()), *means))
  return curve


def calibration_error(curve: Sequence[Bin]) -> float:
  """Expected calibration error: the mean distance of curve and diagonal."""
  counts = np.array([each.number for each in curve])
  gaps = np.array([abs(each.probability - each.relevant) for each in curve])
  return float(counts @ gaps / counts.sum())
