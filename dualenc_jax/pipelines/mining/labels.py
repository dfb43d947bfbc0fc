"""Labels of candidates by a teacher's probabilities, their files and quality.

As RocketQA (Qu et al. 2021) and PAIR (Ren et al. 2021) do: a probability above
the upper threshold is a positive, one below the lower threshold a reliable
negative, and candidates between them are not used.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining.filters import FilteredCandidates
from dualenc_jax.pipelines.mining.negatives import choose
from dualenc_jax.utils.errors import UserError

PAIRS, REPORT, FACTS = 'pairs.jsonl', 'report.md', 'labels.json'
POSITIVES = ('best', 'all', 'none')
# Thresholds of PAIR's table 5, reported beside those of the command.
_THRESHOLDS = ((0.9, 0.1), (0.8, 0.2), (0.7, 0.3), (0.6, 0.4))
# (query, passage) -> whether it is relevant; None where nobody judged it.
Truth = Callable[[int, int], bool | None]


@dataclasses.dataclass(frozen=True)
class Rules:
  """Thresholds, and how many candidates of a query are taken.

  Attributes:
    above: least probability of a positive, excluded.
    below: largest probability of a negative, excluded.
    positives: 'best', the most probable one; 'all'; or 'none'.
    num_negatives: number of negatives, the first in retrieval.
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
  """A passage with the teacher's score and the probability of relevance."""

  passage: int
  score: float
  probability: float


class Labelled(NamedTuple):
  """A query with its labels.

  Attributes:
    query: its number.
    known: labelled positives.
    pseudo: positives by the teacher.
    negatives: in the order of retrieval.
  """

  query: int
  known: Sequence[Candidate]
  pseudo: Sequence[Candidate]
  negatives: Sequence[Candidate]


def label(
    query: int, known: Sequence[Candidate], pool: Sequence[Candidate],
    rules: Rules,
) -> Labelled:
  """Labels the candidates of a query other than its known positives."""
  above = [each for each in pool if each.probability > rules.above]
  if rules.positives == 'best' and above:
    above = [max(above, key=lambda each: each.probability)]
  if rules.positives == 'none':
    above = []
  below = [each for each in pool if each.probability < rules.below]
  return Labelled(query, known, above, below[: rules.num_negatives])


def can_train(labelled: Labelled, rules: Rules) -> bool:
  """Whether a query has a known positive, or a positive and a negative."""
  if labelled.known:
    return True
  return bool(
      labelled.pseudo and (labelled.negatives or not rules.num_negatives)
  )


class Labels(NamedTuple):
  """Labels of the queries that have something to train on, and counts.

  Candidates in `pools`, and labelled positives in `known`, by query, without
  the queries of evaluation splits.
  """

  pools: Mapping[int, Sequence[Candidate]]
  known: Mapping[int, Sequence[Candidate]]
  written: Sequence[Labelled]
  counts: Mapping[str, int]


def label_all(
    kept: Sequence[FilteredCandidates], ranked: RetrievalSet,
    dropped: np.ndarray, rules: Rules,
    probabilities: Callable[[np.ndarray], np.ndarray],
) -> Labels:
  """Labels the candidates of every query.

  Args:
    kept: candidates of each source, with the teacher's scores.
    ranked: the queries, their known positives and the corpus.
    dropped: bool [Q], queries that evaluation splits have.
    rules: thresholds.
    probabilities: of logits.
  """

  def candidates(
      passages: Sequence[int], scores: np.ndarray
  ) -> list[Candidate]:
    chances = np.asarray(probabilities(scores), np.float64)
    return list(map(Candidate, passages, scores.tolist(), chances.tolist()))

  depth = sum(each.mask.shape[1] for each in kept)
  pools, known = {}, {}
  for query, pool in enumerate(choose(kept, ranked, depth)):
    if not dropped[query]:
      scores = np.array([each.score for each in pool], np.float32)
      pools[query] = candidates([each.passage for each in pool], scores)
      own = kept[0].candidates.positives[query]
      known[query] = candidates(ranked.gold[query], own)
  everything = [
      label(query, known[query], pool, rules)
      for query, pool in pools.items()
  ]
  written = [each for each in everything if can_train(each, rules)]
  counts = {
      'queries': len(dropped),
      'queries_of_evaluation_splits': int(dropped.sum()),
      'queries_without_other_candidates': sum(
          not pool for pool in pools.values()
      ),
      'queries_without_a_positive': sum(
          not (each.known or each.pseudo) for each in everything
      ),
      'queries_without_a_negative': sum(not x.negatives for x in everything),
      'queries_written': len(written),
      'pseudo_positives': sum(len(each.pseudo) for each in written),
      'negatives': sum(len(each.negatives) for each in written),
      'known_positives_below_the_lower_threshold': sum(
          c.probability < rules.below for own in known.values() for c in own
      ),
  }
  return Labels(pools, known, written, counts)


def check_logits(kept: Sequence[FilteredCandidates]) -> None:
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


def read_truth(path: str, ranked: RetrievalSet) -> Truth:
  """Whether a passage is relevant, by a file of qrels.

  A grade above 0 is relevant. Where the file has other grades, unjudged
  passages are unknown; else they are not relevant.
  """
  qrels = trec.read_qrels(path)
  if not qrels.keys() & {*ranked.query_ids}:
    raise UserError(
        f'{path} judges none of the queries, such as'
        f' {ranked.query_ids[0]!r}. Is it of another data set?'
    )
  graded = any(g < 1 for own in qrels.values() for g in own.values())
  unjudged, ids = None if graded else False, ranked.corpus.ids

  def truth(query: int, passage: int) -> bool | None:
    judged = qrels.get(ranked.query_ids[query])
    grade = None if judged is None else judged.get(ids[passage])
    if grade is None:
      return None if judged is None else unjudged
    return grade >= 1

  return truth


def rows(
    ranked: RetrievalSet, labelled: Sequence[Labelled]
) -> Iterator[dict[str, object]]:
  """Rows of `tasks/pairs.gin`, with origin and probability of each label."""
  corpus, queries = ranked.corpus, ranked.query_texts
  for each in labelled:
    positives, negatives = [*each.known, *each.pseudo], each.negatives
    origins = ['labelled'] * len(each.known) + ['pseudo'] * len(each.pseudo)
    yield {
        'query_id': ranked.query_ids[each.query],
        'query': queries[each.query],
        'passage_id': [corpus.ids[c.passage] for c in positives],
        'passage': [corpus.texts[c.passage] for c in positives],
        'negatives': [corpus.texts[c.passage] for c in negatives],
        'origin': origins,
        'positive_scores': [c.score for c in positives],
        'positive_probabilities': [c.probability for c in positives],
        'negative_scores': [c.score for c in negatives],
        'negative_probabilities': [c.probability for c in negatives],
    }


def report(labels: Labels, truth: Truth | None, rules: Rules) -> Iterator[str]:
  """Lines of Markdown: counts and, with a truth, the quality of the labels."""
  yield '# Labels\n'
  yield '| | |'
  yield '|---|---|'
  for name, value in labels.counts.items():
    yield f'| {name.replace("_", " ")} | {value} |'
  if truth is None:
    return
  yield '\n## Agreement with the truth\n'
  yield '| thresholds | coverage | positives right | negatives right | judged |'
  yield '|---|---|---|---|---|'
  for above, below in dict.fromkeys([(rules.above, rules.below), *_THRESHOLDS]):
    which = 'best' if rules.positives == 'none' else rules.positives
    own = Rules(above, below, which, rules.num_negatives)
    yield f'| {above:g} / {below:g} | {_agreement(labels, truth, own)} |'


def _agreement(labels: Labels, truth: Truth, rules: Rules) -> str:
  """Table cells on the labels by some rules, compared with the truth.

  The coverage is the share of queries with a pseudo-positive to train on.
  """
  positives: list[bool] = []
  negatives: list[bool] = []
  covered = 0
  for query, pool in labels.pools.items():
    found = label(query, labels.known[query], pool, rules)
    if not can_train(found, rules):
      continue
    covered += bool(found.pseudo)
    for right, wanted, each in (
        (positives, True, found.pseudo), (negatives, False, found.negatives)
    ):
      judged = [truth(query, c.passage) for c in each]
      right += [value == wanted for value in judged if value is not None]
  shares = (f'{np.mean(x):.1%}' if x else '-' for x in (positives, negatives))
  return (
      f'{covered / max(len(labels.pools), 1):.1%} | {" | ".join(shares)} |'
      f' {len(positives):,}, {len(negatives):,}'
  )
