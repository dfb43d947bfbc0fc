"""The files of `dualenc label`, and the quality of its labels."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining import labels
from dualenc_jax.pipelines.mining.labels import (
  Candidate,
  Labelled,
  Pool,
  Rules,
  Truth,
)

PAIRS, REPORT, FACTS = 'pairs.jsonl', 'report.md', 'labels.json'
# Beside those that were asked for; of PAIR's table 5.
_THRESHOLDS = ((0.9, 0.1), (0.8, 0.2), (0.7, 0.3), (0.6, 0.4))
# Others to this rank, at most, are looked at for lost positives.
_TOP = 50


def rows(
    ranked: RetrievalSet, labelled: Sequence[Labelled]
) -> Iterator[dict[str, object]]:
  """Rows of `tasks/pairs.gin`, with origin and probability of each label."""
  corpus, queries = ranked.corpus, ranked.query_texts
  for each in labelled:
    positives, negatives = each.positives, each.negatives
    yield {
        'query_id': ranked.query_ids[each.query],
        'query': queries[each.query],
        'passage_id': [corpus.ids[c.passage] for c in positives],
        'passage': [corpus.texts[c.passage] for c in positives],
        'negatives': [corpus.texts[c.passage] for c in negatives],
        'origin': each.origins,
        'positive_scores': [c.score for c in positives],
        'positive_probabilities': [c.probability for c in positives],
        'negative_scores': [c.score for c in negatives],
        'negative_probabilities': [c.probability for c in negatives],
    }


def facts(
    pools: Mapping[int, Pool],
    known: Mapping[int, Sequence[Candidate]],
    labelled: Sequence[Labelled],
    rules: Rules,
    depth: int,
) -> dict[str, float | int | None]:
  """Counts and means of what was labelled, of candidates to rank `depth`."""
  top = min(_TOP, depth)
  pseudo = [
      c.probability
      for each in labelled
      for c, origin in zip(each.positives, each.origins)
      if origin == labels.PSEUDO
  ]
  negatives = [c for each in labelled for c in each.negatives]
  labelled_ones = [c.probability for each in known.values() for c in each]
  tops = [
      own.probabilities[own.ranks <= top] > rules.above
      for own in pools.values()
  ]
  return {
      'queries_written': len(labelled),
      'queries_with_a_pseudo_positive': sum(
          labels.PSEUDO in each.origins for each in labelled
      ),
      'pseudo_positives': len(pseudo),
      'negatives': len(negatives),
      'mean_probability_of_pseudo_positives': _mean(pseudo),
      'mean_probability_of_negatives': _mean(
          [c.probability for c in negatives]
      ),
      'mean_rank_of_negatives': _mean([c.rank for c in negatives]),
      'labelled_positives_below_the_lower_threshold': _mean(
          [p < rules.below for p in labelled_ones]
      ),
      f'others_to_rank_{top}_above_the_upper_threshold': _mean(
          np.concatenate(tops) if tops else []
      ),
  }


def report(
    counts: Mapping[str, object],
    pools: Mapping[int, Pool],
    known: Mapping[int, Sequence[Candidate]],
    truth: Truth | None,
    rules: Rules,
) -> Iterator[str]:
  """Lines of Markdown: counts, and, where there is a truth, how good."""
  yield '# Labels\n'
  yield '| | |'
  yield '|---|---|'
  for name, value in counts.items():
    text = f'{value:.4f}' if isinstance(value, float) else f'{value}'
    text = '-' if value is None else text
    yield f'| {name.replace("_", " ")} | {text} |'
  if truth is None:
    yield '\nWithout --truth nothing says how many of the labels are right.'
    return
  yield '\n## Agreement with the truth\n'
  yield '| thresholds | coverage | positives right | negatives right | judged |'
  yield '|---|---|---|---|---|'
  pairs = dict.fromkeys([(rules.above, rules.below), *_THRESHOLDS])
  for above, below in pairs:
    which = 'best' if rules.positives == 'none' else rules.positives
    own = dataclasses.replace(
        rules, above=above, below=below, positives=which
    )
    found = labels.agreement(pools, known, truth, own)
    yield (
        f'| {above:g} / {below:g} | {found.coverage:.1%} |'
        f' {_percent(found.positives)} | {_percent(found.negatives)} |'
        f' {found.judged[0]:,}, {found.judged[1]:,} |'
    )
  yield '\n## Reliability\n'
  curve = labels.reliability(pools, truth)
  if not curve:
    yield 'None of the candidates is judged.'
    return
  yield '| probability | candidates | mean probability | relevant |'
  yield '|---|---|---|---|'
  for each in curve:
    yield (
        f'| {each.low:.1f} to {each.high:.1f} | {each.number:,} |'
        f' {each.probability:.3f} | {each.relevant:.3f} |'
    )
  error = labels.calibration_error(curve)
  yield f'\nExpected calibration error: {error:.4f}.'


def _percent(share: float) -> str:
  return '-' if np.isnan(share) else f'{share:.1%}'


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
  return float(np.mean(values)) if len(values) else None
