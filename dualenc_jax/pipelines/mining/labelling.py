"""The labels of all queries of a set, by the scores of a teacher."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.evaluation.teacher_scores import Score
from dualenc_jax.pipelines.mining import label_output, labels, negatives
from dualenc_jax.pipelines.mining.filters import Kept
from dualenc_jax.pipelines.mining.labels import (
  Candidate,
  Labelled,
  Pool,
  Rules,
  Truth,
)
from dualenc_jax.utils.errors import UserError

# Logits of what is certain are finite.
_LIMITS = 1e-7, 1 - 1e-7


class Labels(NamedTuple):
  """The labels of the queries that have something to train on, and counts.

  By query, without those of evaluation splits: `pools` of candidates, and
  labelled positives that are `known`, with the teacher's scores.
  """

  pools: Mapping[int, Pool]
  known: Mapping[int, Sequence[Candidate]]
  written: Sequence[Labelled]
  counts: Mapping[str, Any]


def label(
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
  chosen = negatives.choose(kept, ranked, sum(depths))
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
      labels.label(query, known[query], pool, rules)
      for query, pool in pools.items()
  ]
  written = [each for each in everything if labels.is_written(each, rules)]
  counts = {
      'queries': len(dropped),
      'queries_of_evaluation_splits': int(dropped.sum()),
      'queries_without_other_candidates': sum(
          not len(pool) for pool in pools.values()
      ),
      'queries_without_a_positive': sum(not x.positives for x in everything),
      'queries_without_a_negative': sum(not x.negatives for x in everything),
      **label_output.facts(pools, known, written, rules, max(depths)),
  }
  return Labels(pools, known, written, counts)


def logits(score: Score, pairs: np.ndarray) -> np.ndarray:
  """The logits of pairs, for scores that are probabilities."""
  found = score(pairs).astype(np.float64)
  odd = found[(found < 0) | (found > 1)]
  if len(odd):
    raise UserError(
        f'--calibration=probabilities, but a score is {odd[0]:g}; expected 0 to'
        ' 1. For logits give --calibration=1,0.'
    )
  found = np.clip(found, *_LIMITS)
  return np.log(found / (1 - found)).astype(np.float32)


def check_logits(kept: Sequence[Kept]) -> None:
  """Raises UserError for scores that look like probabilities."""
  every = [each.candidates.scores[each.mask] for each in kept]
  found = np.concatenate([*every, *kept[0].candidates.positives])
  found = found[~np.isnan(found)]
  if len(found) and 0 <= found.min() < found.max() <= 1:
    raise UserError(
        f'All {len(found):,} scores of the teacher are from 0 to 1, like'
        ' probabilities, but --calibration=1,0 is for logits. Give'
        ' --calibration=probabilities if they are probabilities.'
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
